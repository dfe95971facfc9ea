"""Templates of texts for models, written by operators and programs. They are validated before use."""

from __future__ import annotations


def fill_template(template: str, skills: str, *, resource_instructions: str = "", runner_instructions: str = "") -> str:
    """Fill the placeholders of a template that advertises skills.

    Raises:
        ValueError: It lacks `{skills}`, or has braces that are neither a known name nor doubled.
    """
    probe = "\x00skills\x00"
    try:
        text = template.format(skills=probe, resource_instructions=resource_instructions, runner_instructions=runner_instructions)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(f"The instruction template is not usable ({error!r}): it needs {{skills}}; double every other brace.") from None
    if probe not in text:
        raise ValueError("The instruction template has no {skills}.")
    return text.replace(probe, skills)
