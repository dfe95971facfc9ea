"""The parts of a streamed text that the gateway sends as progress messages."""

from gateway.tools.progress_text import Sentences


async def test_repeated_lines_are_reported_once() -> None:
    sentences = Sentences()
    assert sentences.add("Looking.\nLooking.\n\nLooking.\nFound.\n") == "Looking.\n\nFound."
    assert sentences.add("Found.\nDone") == "", "the last report was less than half a second ago"
    assert sentences.rest() == ["Done"]
