"""Laws of the mask: no secret is written down, and what is none stays readable."""

from __future__ import annotations

import dataclasses
import json
import shlex
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxguard.launch.masking import everywhere, lines, mask, masked, secrets_in, secrets_of

HEX40 = "0123456789abcdef0123456789abcdef01234567"
LOOKS = [
    "hf_abcdefghijklmnopqrstuvwxyzABCDEF",
    "sk-proj-abcdefghijklmnop_qrstuvwxyz0123456789",
    "sk-ant-api03-abcdefghijklmnopqrstuvwx-yz",
    "sk-abcdefghijklmnopqrstuvwxyz0123456789",
    "r8_abcdefghijklmnopqrstuvwxyz0123456789",
    "wandb_v1_abcdefghijklmnopqrstuvwxyz",
    "AKIAABCDEFGHIJKLMNOP",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "gho_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghijklmnop",
    "glpat-abcdefghijklmnopqrst",
    "xoxb-123456789012-abcdefghijkl",
    "123456789:AAabcdefghijklmnopqrstuvwxyz012345678",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF-123",
]
NAMED = [
    ("{}", "wandb: using key ", HEX40, ""),
    ("{}", "civitai answered 401 for ", "0123456789abcdef0123456789abcdef", ""),
    ("{}", "Authorization: Bearer ", "abc.def-ghi", ""),
    ("{}", "'Authorization': 'Basic ", "dXNlcjpwYXNz", "'"),
    ("{}", '{"x-api-key": "', "abcdefgh12", '"}'),
    ("{}", "https://", "user:p4ss-word", "@example.org/repo.git"),
    ("{}", "redis://", ":p4ss-word", "@cache:6379/0"),
    ("{}", "https://bucket.s3.amazonaws.com/x?X-Amz-Date=1&X-Amz-Signature=", "deadbeef0123", "&X-Amz-Expires=5"),
    ("{}", "https://civitai.com/api/download/models/1?type=Model&token=", "s3cr3tvalue", ""),
    ("{}", "https://storage.googleapis.com/a?X-Goog-Signature=", "abc123", ""),
    ("{}", "https://x.blob.core.windows.net/a?se=1&sig=", "ab%2Bc%3D", "&sp=r"),
    ("{}", "https://discord.com/api/webhooks/", "1234/abcDEF", ""),
    ("{}", "Namespace(seed=42, huggingface_token='", "s3cret", "', lr=1)"),
    ("{}", "wandb_api_key = '", "s3cret", "'"),
    ("{}", '{\\"hf_token\\": \\"', "s3cret-9", '\\"}'),
    ("{}", "export WANDB_API_KEY=", "s3cret", " && python x.py"),
    ("{}", "MY_SECRET_KEY_ID: ", "s3cret", ""),
    ("{}", 'password: "', "two words", '"'),
    ("{}", "--wandb_api_key=", "s3cret", " --seed 1"),
    ("{}", "--huggingface_token ", "s3cret", " --seed 1"),
    ("{}", "['--huggingface_token', '", "s3cret", "', '--seed', '1']"),
    ("{}", '"--api-key=', "s3cret", '", "--seed"'),
    ("{}", "https://", "me:p@ss/word"[:8], "@host/x"),
    ("{}", "{'token': '", "s3cret9", "'}"),
    ("{}", "machine api.wandb.ai login user password ", "s3cret99", ""),
    ("{}", "accessToken=", "s3cret", ", seed=1"),
    ("{}", '{"said": "token=', "s3cret", '", "seed": 1, "name": "x"}'),
    ("{}", "--password ", "'it'\"'\"'s s3cret'", " --seed 1"),
]


@pytest.mark.parametrize("secret", LOOKS)
@pytest.mark.parametrize("around", ["{}", "the token {} is bad", "['{}']", "x={},", "https://h/{}/x", '"{}"'])
def test_what_looks_like_a_key_is_hidden_wherever_it_stands(secret: str, around: str) -> None:
    """Nobody has to say that it is one."""
    shown = mask(around.format(secret))
    assert "***" in shown
    assert secret[8:] not in shown


@pytest.mark.parametrize(("_", "before", "secret", "after"), NAMED, ids=[f"{row[1]}..." for row in NAMED])
def test_what_is_named_as_a_secret_is_hidden_and_nothing_else(_: str, before: str, secret: str, after: str) -> None:
    """What stands around it says what the line is about."""
    shown = mask(before + secret + after)
    assert secret not in shown
    assert "***" in shown
    assert shown.startswith(before.removesuffix("Bearer ").removesuffix("Basic ")[:8])
    assert shown.endswith(after)


@pytest.mark.parametrize(
    "text",
    [
        "--keep_tokens 1",
        "--max_token_length 225",
        "--huggingface_token --seed 1",
        "a token",
        "keep_tokens = 1, class_tokens = 'tok'",
        "pad_token='<pad>', eos_token: </s>, unk_token=<unk>",
        "SyntaxError: unexpected token: '}' in line 3",
        "HF_TOKEN=$HF_TOKEN wandb_api_key=None password: ''",
        "TOKENIZERS_PARALLELISM=false",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "git clone git@github.com:kohya-ss/sd-scripts.git ssh://git@github.com/x",
        "https://huggingface.co/black-forest-labs/FLUX.1-dev/resolve/main/flux1-dev.sft?download=true",
        'File "/home/a/sd-scripts/library/flux_train_utils.py", line 12, in sample_images',
        "steps:  52%|#####2    | 520/1000 [10:01<09:15,  1.16s/it, avr_loss=0.31]",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (512x4096 and 768x3072)",
        "KeyError: 'lora_unet_double_blocks_0_img_attn_proj.alpha'",
        "train.py: error: argument --huggingface_token: expected one argument",
        "LocalTokenNotFoundError: Token is required (`token=True`), but no token found.",
        "Log in once (wandb login), pass --wandb_api_key, or take --log_with out.",
        "pass --huggingface_token and try again",
        "sk-portrait-of-my-cat-v12-final/sk_portrait_dataset_2024.safetensors",
        "password authentication is not supported",
        "INFO  epoch is incremented. current_epoch: 0, epoch: 1  train_util.py:703",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A report that hides what matters helps nobody."""
    assert mask(text) == text


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + ("b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE" + "\n") * 6
END = "-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize("text", [f"a\n{KEY}{END}\nb", f"a\n{KEY}", KEY[37:] + END])
def test_a_private_key_is_hidden_whole(text: str) -> None:
    """Over all its lines, and also where the last lines of a log hold only its beginning or its end."""
    assert "b3BlbnNz" not in "\n".join(lines(text.split("\n")))


@pytest.mark.parametrize("size", range(6, 20))
def test_a_secret_that_a_long_line_was_cut_in_is_hidden(size: int) -> None:
    """Whoever reads a log bounds its lines, and may do so in the middle of one."""
    secret = "s3cret-value-of-mine"
    (shown,) = lines(["x" * 600 + secret[:size]], {secret})
    assert shown == "x" * 600 + "***"


SECRETS = st.text(string.ascii_letters + string.digits + "+/=_-.!@#%^&*$'\"\\ ;,()", min_size=12, max_size=60).filter(
    lambda text: text.strip() == text and not text.startswith(("-", "$", "<", "["))
)


@given(secret=SECRETS, rest=st.text(max_size=30))
def test_a_known_value_is_hidden_however_it_is_spelt(secret: str, rest: str) -> None:
    """As it is, in JSON, in Python, for a shell."""
    spelt = [secret, json.dumps({"x": secret}), repr([secret]), shlex.join(["a", secret]), json.dumps([repr(secret)])]
    text = rest + " ".join(spelt[:4]) + rest
    assert secret not in mask(text, {secret})
    assert json.dumps(secret)[1:-1] not in mask(text, {secret})


@given(secret=st.text(string.ascii_letters + string.digits + "+/=_-.", min_size=16, max_size=60))
def test_a_value_is_hidden_by_the_name_before_it(secret: str) -> None:
    """Whatever it looks like and however the line is written."""
    if not secret.strip("._-+/=") or secret.startswith("-"):
        return
    for before, after in (
        ("--huggingface_token ", " --seed 1"),
        ("--wandb_api_key=", ""),
        ("huggingface_token='", "'"),
        ('"wandb_api_key": "', '"'),
        ("WANDB_API_KEY=", ""),
        ("https://x/?a=1&token=", ""),
    ):
        shown = mask(before + secret + after)
        assert shown.startswith(before)
        assert secret.rstrip(".") not in shown.removeprefix(before)


@given(st.text(max_size=300))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    """And it never fails, whatever a log holds."""
    once = mask(text)
    assert mask(once) == once


def test_a_huge_line_is_masked_in_passing() -> None:
    """No pattern walks a line again and again: a second for a megabyte would hold up a kill."""
    for text in (
        "a" * 1_000_000,
        "token" * 200_000,
        "--" * 500_000,
        "https://" * 100_000,
        ")" * 500_000,
        '="' * 400_000,
    ):
        assert isinstance(mask(text), str)


def test_secrets_are_known_from_commands_settings_and_environments(tmp_path: Path) -> None:
    """Their values, not those too short to be one, and no paths or switches."""
    argv = ["x.py", "--huggingface_token", "long-enough", "--wandb_api_key=also-long", "--api_key", "no"]
    argv += ["--proxy", "http://me:proxy-word@h:1"]
    env = {
        "HF_TOKEN": "from-the-environment",
        "HF_TOKEN_PATH": "/home/somebody/token",
        "MY_KEY": "false",
        "HOME": "/home/somebody",
        "HTTPS_PROXY": "http://me:p%40ssword@proxy:3128",
    }
    assert secrets_of(argv, env) == {
        "long-enough", "also-long", "proxy-word", "from-the-environment", "p%40ssword", "p@ssword",
    }  # fmt: skip
    config = tmp_path / "config.toml"
    config.write_text("seed = 1\n[logging]\nwandb_api_key = 'in-the-file'\nlog_prefix = 'plain'\n")
    assert secrets_in(config) == {"in-the-file"}
    assert secrets_in(tmp_path / "none.toml") == secrets_in(None) == frozenset()


def test_a_command_is_shown_without_secrets() -> None:
    """Those in addresses too, and every word of a secret flag."""
    argv = ["a", "--huggingface_token", "one", "two", "--note", "https://me:pass@h/x?token=abc", "--b=c"]
    assert masked(argv) == ("a", "--huggingface_token", "***", "***", "--note", "https://***@h/x?token=***", "--b=c")


@dataclasses.dataclass(frozen=True)
class Thing:
    """Something with texts inside."""

    words: str
    table: dict[str, object]


def test_every_text_inside_a_value_is_masked() -> None:
    """In tables, lists and dataclasses, under whatever key; what is no text stays."""
    thing = Thing("say s3cret-1", {"wandb_api_key": "xyz", "deep": ["s3cret-1", 1, None, ("s3cret-1",)]})
    assert everywhere(thing, {"s3cret-1"}) == Thing(
        "say ***", {"wandb_api_key": "***", "deep": ["***", 1, None, ("***",)]}
    )
