"""Sample prompts: one a line, with options such as `--w 128 --h 128 --s 4 --d 42` behind the text."""

import re
from typing import Any

OPTIONS = {
    "w": ("width", int),
    "h": ("height", int),
    "d": ("seed", int),
    "s": ("sample_steps", int),
    "g": ("guidance_scale", float),
    "l": ("scale", float),
    "n": ("negative_prompt", str),
}


def line_to_prompt_dict(line: str) -> dict[str, Any]:
    """Split one line into the prompt and its options; unknown options are dropped."""
    prompt, *rest = line.split(" --")
    prompt_dict: dict[str, Any] = {"prompt": prompt.strip()}
    for option in rest:
        match = re.match(r"(\w)\s+(.+)", option.strip())
        if match and match[1] in OPTIONS:
            name, convert = OPTIONS[match[1]]
            prompt_dict[name] = convert(match[2].strip())
    return prompt_dict


def load_prompts(prompt_file: str) -> list[dict[str, Any]]:
    """Read all prompts of a file, numbered; empty lines and comments are left out."""
    with open(prompt_file, encoding="utf-8") as f:
        lines = [line.strip() for line in f]
    prompts = [line_to_prompt_dict(line) for line in lines if line and not line.startswith("#")]
    return [{**prompt, "enum": i} for i, prompt in enumerate(prompts)]
