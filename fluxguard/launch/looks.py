"""What a secret looks like in a text that nobody wrote for us: a log, a command, a stack, a settings file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

MASK = "***"

_WORDS = (
    r"token|api[_-]?key|secret(?:[_-]?key)?|password|passwd|credentials?|access[_-]?key(?:[_-]?id)?"
    r"|(?:private|auth|account|signing|encryption)[_-]?key|webhook(?:[_-]?url)?"
)
_NAME = re.compile(rf"(?:.*[_-])?(?:{_WORDS})", re.IGNORECASE)
_NO_SECRET = re.compile(
    r"(?:.*[_-])?(?:pad|eos|bos|unk|sep|cls|mask|class|instance|trigger|special|next|last|first|placeholder"
    r"|initializer|image|start|end|stop|per|each|num|max|min)[_-]token",
    re.IGNORECASE,
)
"""A token of a tokenizer, which is a word of a text."""
_TRIVIAL = re.compile(r"(?:none|null|true|false|yes|no|on|off|nan|\d{1,3}|<[^>]*>?|\*{3,}|\$\w+|\$\{\w+\}|\[.*)?", re.I)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_AROUND = ".,;:)]}>`'\"\\"
_BEGIN, _END = re.compile(r"\\*['\"]?"), re.compile(r"\\*['\"]?[.,;:)\]}>`]*$")
_SHORTEST_LOOSE = 12
_PROSE = {
    "a", "again", "and", "as", "at", "but", "can", "for", "from", "has", "if", "in", "instead", "is", "it", "its",
    "may", "must", "needs", "of", "on", "or", "so", "the", "then", "to", "too", "was", "were", "when", "where", "which",
    "with",
}  # fmt: skip
"""What follows the name of a flag in a sentence about it."""

_NAMED = rf"(?P<name>[\w-]{{0,48}}?(?:{_WORDS}))"
_VALUE = (
    r"(?P<value>\\+[\"'](?:(?!\\+[\"'])[^\n])*\\+[\"']"  # quoted within quotes
    r"|(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')+|[^\s'\"]+)"
)
_FLAG_IN_QUOTES = re.compile(rf"(?P<before>(?P<quote>['\"])--{_NAMED}=)(?P<value>(?:(?!(?P=quote))[^\n])+)", re.I)
_FLAG = re.compile(rf"(?P<before>(?<![\w-])--{_NAMED}(?:\\*['\"],?\s+|\s+|=))(?!\\*['\"]?--){_VALUE}", re.I)
_ASSIGNED = re.compile(rf"(?P<before>(?<![\w-]){_NAMED}\\*['\"]?\s{{0,4}}(?P<sign>[:=])>?\s{{0,4}}){_VALUE}", re.I)
_VARIABLE = re.compile(
    r"(?P<before>(?<![\w-])(?P<name>(?=[A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL))[A-Z][A-Z0-9_]{2,60})"
    rf"\\*['\"]?\s{{0,4}}[:=]\s{{0,4}}){_VALUE}"
)
_HEADER = re.compile(
    r"(?P<before>\b(?:proxy-)?authorization\\*['\"]?\s{0,4}[:=]\s{0,4}\\*['\"]?(?:(?:bearer|basic|token|digest)\s+)?"
    r"|\b(?:set-)?cookie\\*['\"]?\s{0,4}:\s{0,4}|\bx-[\w-]{0,32}(?:key|token|secret)\\*['\"]?\s{0,4}:\s{0,4}"
    r"|\bbearer\s+|\blogin\s+\S{1,64}\s+password\s+)(?P<value>[^\s'\"]{6,}(?:;\s[^\s'\"]+)*)",
    re.IGNORECASE,
)
_KEY = "PRIVATE KEY"
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_KEY_BLOCK_CUT = re.compile(
    r"(?:^[ \t]*[A-Za-z0-9+/=]{16,}[ \t]*\r?\n){1,200}[A-Za-z0-9+/=\s]{0,80}(?=-----END [A-Z0-9 ]{0,40}PRIVATE KEY)",
    re.MULTILINE,
)
_IN_URL = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]{1,16}://)(?!git@)[^\s/?'\"<>]+@", re.IGNORECASE)
_IN_QUERY = re.compile(
    r"(?P<before>[?&;](?:amp;)?(?:x-(?:amz|goog|ms)-(?:signature|credential|security-token|signedheaders)|signature|sig|policy"
    r"|key-pair-id|awsaccesskeyid|googleaccessid|[\w.-]{0,32}(?:token|key|secret|password|passwd|auth|code))=)"
    r"[^&\s'\"<>\\]+",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|sk-(?:proj|svcacct|admin|ant|or|lf)-[A-Za-z0-9_-]{16,}|sk-[A-Za-z0-9]{20,}"  # OpenAI, Anthropic, OpenRouter
    r"|(?:sk|pk|rk)[-_](?:live|test|lf)[-_][A-Za-z0-9-]{16,}"  # Stripe, Langfuse
    r"|wandb_v\d_[A-Za-z0-9_-]{16,}|local-[0-9a-f]{40}"  # Weights & Biases
    r"|r8_[A-Za-z0-9]{20,}|civitai_[A-Za-z0-9]{16,}"  # Replicate, Civitai
    r"|key-[A-Za-z0-9]{24,}|rpa_[A-Z0-9]{20,}"  # RunPod
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}"  # AWS, Google
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}"  # GitHub, GitLab
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}"
    r"|\d{8,10}:AA[A-Za-z0-9_-]{30,}"  # Telegram
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+)"  # a JSON web token
)
_HOOKS = re.compile(
    r"(?P<before>\b(?:discord(?:app)?\.com/api/webhooks|hooks\.slack\.com/(?:services|workflows)|ntfy\.sh)/)[^\s'\"<>]+"
)
_NEAR = re.compile(
    r"(?P<before>\b(?:wandb|weights ?& ?biases|civitai|comet|neptune|clearml)\b[^\n]{0,120}?)"
    r"(?<![A-Za-z0-9])(?:[0-9a-f]{40}|[0-9a-f]{32})(?![A-Za-z0-9])",
    re.IGNORECASE,
)
"""A key of bare hexadecimal digits is known only by the service that is named before it; a commit looks the same."""


def is_secret_name(name: str) -> bool:
    """Whether the name of a flag or a setting says that its value must not be written down."""
    name = _HUMP.sub("_", name)
    return _NAME.fullmatch(name) is not None and _NO_SECRET.fullmatch(name) is None


def is_trivial(value: str) -> bool:
    """Whether a value is none that anybody would hide: nothing, a switch, a placeholder, the name of a variable."""
    return _TRIVIAL.fullmatch(value) is not None


def by_look(text: str) -> str:
    """Return the text with `***` in the place of what looks like a secret or is named as one."""
    if _KEY in text:  # looking for a part of one takes seconds in pictures that are printed as text
        text = _KEY_BLOCK_CUT.sub(f"{MASK}\n", _KEY_BLOCK.sub(MASK, text))
    text = _IN_URL.sub(rf"\g<before>{MASK}@", text)
    for pattern in (_IN_QUERY, _HOOKS):
        text = pattern.sub(rf"\g<before>{MASK}", text)
    text = _KNOWN.sub(MASK, text)
    for pattern, hidden in _BY_NAME:
        text = pattern.sub(hidden, text)
    return _NEAR.sub(rf"\g<before>{MASK}", text)


def _hidden(found: re.Match[str]) -> str:
    name, value = found.groupdict().get("name"), found["value"]
    if name and not is_secret_name(name) and not name.isupper():
        return found[0]
    bare = value.lstrip("'\"\\").rstrip(_AROUND)
    if is_trivial(bare) or bare.startswith(MASK) or bare in _PROSE:
        return found[0]
    return found["before"] + _with_quotes(value)


def _hidden_if_likely(found: re.Match[str]) -> str:
    """Of `token: word` in a sentence only what is no word is hidden: an error message may be about syntax.

    Of `--huggingface_token: word` nothing: that is what argparse says about a flag.
    """
    value = found["value"].lstrip("'\"\\").rstrip(_AROUND)
    if found["sign"] == ":" and found["name"].startswith("--"):
        return found[0]
    quoted = found["before"].rstrip(":= ")[-1] in "'\""
    plain = not quoted and (len(value) < _SHORTEST_LOOSE or value.isalpha())
    if found["sign"] == ":" and found["name"].lower() in ("token", "secret", "credentials", "credential") and plain:
        return found[0]
    return _hidden(found)


def _with_quotes(value: str) -> str:
    """Return the mask in the quotes of a value, with what follows it in a list or a sentence."""
    begin, end = _BEGIN.match(value), _END.search(value)
    return f"{begin[0] if begin else ''}{MASK}{end[0] if end else ''}"


_BY_NAME: Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = (
    (_HEADER, lambda found: found["before"] + MASK),
    (_FLAG_IN_QUOTES, _hidden),
    (_FLAG, _hidden),
    (_VARIABLE, _hidden),
    (_ASSIGNED, _hidden_if_likely),
)
