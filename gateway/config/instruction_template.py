"""Fills the template of the text that tells a model which skills exist. Operators and programs that use Moongate may write the template."""

from __future__ import annotations


def fill_template(template: str, skills: str, *, resource_instructions: str = "", runner_instructions: str = "") -> str:
    """Return a template's text with the placeholders `{skills}`, `{resource_instructions}` and `{runner_instructions}` replaced.

    The text tells a model which skills exist. In the template, a literal brace is written twice.

    Raises:
        ValueError: The template lacks `{skills}`, or has another placeholder or a single brace.
    """
    probe = "\x00skills\x00"
    try:
        text = template.format(skills=probe, resource_instructions=resource_instructions, runner_instructions=runner_instructions)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(f"The instruction template is not usable ({error!r}): it needs {{skills}}; double every other brace.") from None
    if probe not in text:
        raise ValueError("The instruction template has no {skills}.")
    return text.replace(probe, skills)
