"""Workflows in code for `test_workflows`: the gateway imports them from its configuration's folder."""

MODULE = '''
from dataclasses import dataclass
from typing import Literal, Never

from gateway import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler


@dataclass
class Order:
    item: str
    count: int = 1


@dataclass
class Verdict:
    approved: bool
    size: Literal["small", "large"] = "small"


@dataclass
class Receipt:
    item: str
    total: int
    approved: bool


class Desk(Executor):
    """Asks two things at once, of different types."""

    def __init__(self):
        super().__init__("desk")

    @handler
    async def order(self, order: Order, ctx: WorkflowContext[Never, Receipt]) -> None:
        self.order = order
        self.given = {}
        await ctx.request_info({"question": f"Approve {order.item}?"}, Verdict)
        await ctx.request_info("How much?", int)

    @response_handler
    async def verdict(self, request: dict, answer: Verdict, ctx: WorkflowContext[Never, Receipt]) -> None:
        self.given["verdict"] = answer
        await self.done(ctx)

    @response_handler
    async def price(self, request: str, answer: int, ctx: WorkflowContext[Never, Receipt]) -> None:
        self.given["price"] = answer
        await self.done(ctx)

    async def done(self, ctx):
        if len(self.given) == 2:
            await ctx.yield_output(Receipt(self.order.item, self.order.count * self.given["price"], self.given["verdict"].approved))

    async def on_checkpoint_save(self):
        return {"order": self.order, "given": self.given}

    async def on_checkpoint_restore(self, state):
        self.order, self.given = state["order"], state["given"]


class Many(Executor):
    """Takes several types, yields on the way."""

    def __init__(self):
        super().__init__("many")

    @handler
    async def text(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"heard {text}")
        await ctx.send_message(text.upper())

    @handler
    async def number(self, number: int, ctx: WorkflowContext[str, str]) -> None:
        await ctx.send_message(str(number * 2))

    @handler
    async def numbers(self, numbers: list[int], ctx: WorkflowContext[str, str]) -> None:
        raise RuntimeError("a secret")


class Last(Executor):
    def __init__(self):
        super().__init__("last")

    @handler
    async def say(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(text)
        await ctx.yield_output("bye")


def order():
    return WorkflowBuilder(start_executor=Desk()).build()


def many():
    first, last = Many(), Last()
    return WorkflowBuilder(start_executor=first, output_from=[last], intermediate_output_from=[first]).add_edge(first, last).build()
'''

FILES = {
    "order": "name: order\ndescription: Orders.\npython: asking_flows_module:order\n",
    "many": "name: many\ndescription: Many.\npython: asking_flows_module:many\n",
    "page": """\
name: page
description: Publishes.
input: {text: {type: string}}
executors:
  check: {ask: "Publish {{text}}?", output: {ok: {type: boolean}}}
  done: {ask: "Really?"}
start: check
edges: [{from: check, to: done, when: {ok: true}}]
output: check
""",
}
