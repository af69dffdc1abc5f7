"""The Hugging Face hub, the network before it, and the services a training logs to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fluxguard.supervisor.causes.cause import Cause, Seen, says, waits
from fluxguard.supervisor.causes.signatures import INPUT, MACHINE

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom

_DOWNLOADED = re.compile(r"\d%\|[^|]*\|\s*[\d.]+[kMGT]?B?/[\d.]+[kMGT]B?\s*\[")
"""A bar of bytes: other bars of a training count whole things."""


def _unmoved(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    if symptom.kind not in ("idle", "stuck") or symptom.phase not in ("load", "tokenizers") or not evidence.lines:
        return ()
    last = evidence.lines[-1].strip()
    return (last,) if _DOWNLOADED.search(last) else ()


CAUSES = (
    Cause(
        name="no access to the hub",
        words="The Hugging Face hub does not give this model to this user: {said}",
        advice="Accept the model's licence on its page, then log in (huggingface-cli login), or use files you have.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"GatedRepoError: .*|Cannot access gated repo for url.*|You are trying to access a gated repo.*",
                "huggingface_hub.errors.GatedRepoError: 403 Client Error.",
            ),
            says(
                r"(?:HTTPError|HfHubHTTPError|RepositoryNotFoundError): 40[13] Client Error.*",
                "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url:"
                " https://huggingface.co/api/models/x",
            ),
            says(
                r"(?:Invalid user token|Token is required|Invalid username or password|LocalTokenNotFoundError).*",
                "huggingface_hub.errors.LocalTokenNotFoundError: Token is required (`token=True`), but no token found.",
            ),
        ),
    ),
    Cause(
        name="not found on the hub",
        words="The Hugging Face hub does not have what was asked for: {said}",
        advice="Check the name of the model or file.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"\b(?:RepositoryNotFoundError|EntryNotFoundError|RevisionNotFoundError): .*",
                "huggingface_hub.errors.EntryNotFoundError: 404 Client Error. (Request ID: Root=1-2)",
            ),
            says(
                r"OSError: .*is not a local folder and is not a valid model identifier.*",
                "OSError: openai/clip is not a local folder and is not a valid model identifier listed on"
                " 'https://huggingface.co/models'",
            ),
            says(
                r"HFValidationError: .*",
                "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or"
                " 'namespace/repo_name': '/models/t5'.",
            ),
        ),
    ),
    Cause(
        name="hub not reached",
        words="A file is not on this machine, and the Hugging Face hub was not asked or did not answer: {said}",
        advice="Check the network (and HF_HUB_OFFLINE); for a machine without one, fill --tokenizer_cache_dir once"
        " where there is one.",
        origin=MACHINE,
        shown=(
            says(
                r"^OSError: We couldn't connect to 'https?://.*",
                "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find"
                " them in the cached files.",
            ),
            says(
                r"(?:LocalEntryNotFoundError|OfflineModeIsEnabled): .*",
                "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk"
                " cache and outgoing traffic has been disabled.",
            ),
            says(
                r"^OSError: Can't load tokenizer for .*",
                "OSError: Can't load tokenizer for 'openai/clip-vit-large-patch14'. If you were trying to load"
                " it from 'https://huggingface.co/models'",
            ),
        ),
    ),
    Cause(
        name="download failed",
        words="A download from the hub broke off: {said}",
        advice="Start it again with HF_HUB_ENABLE_HF_TRANSFER=0 and HF_HUB_DISABLE_XET=1: slower, but it goes on where"
        " it was.",
        origin=MACHINE,
        shown=(
            says(
                r"An error occurred while downloading using `hf_transfer`.*",
                "RuntimeError: An error occurred while downloading using `hf_transfer`. Consider disabling"
                " HF_HUB_ENABLE_HF_TRANSFER for better error handling.",
            ),
            says(
                r"Data processing error: .*|CAS service error.*",
                "RuntimeError: Data processing error: CAS service error : IO Error: Timer expired (os error 62)",
            ),
            says(
                r"Consistency check failed: file should be of size.*",
                "OSError: Consistency check failed: file should be of size 23802932552 but has size 9521173020"
                " (flux1-dev.safetensors).",
            ),
            says(
                r"(?:IncompleteRead\(|ChunkedEncodingError: ).*",
                "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(1 bytes read)',"
                " IncompleteRead(1 bytes read))",
            ),
        ),
    ),
    Cause(
        name="download stuck",
        words="A download from the hub does not go on.",
        advice="Set HF_HUB_ENABLE_HF_TRANSFER=0 and HF_HUB_DISABLE_XET=1, or download the files by hand before.",
        origin=MACHINE,
        sure=False,
        fixed=True,
        shown=(
            Seen(
                "no progress while loading, and the last line is a bar of bytes that is not full", _unmoved, late=True
            ),
            waits(
                "no progress, and a stack stands in a download of huggingface_hub",
                "",
                "http_get",
                "xet_get",
                "_download_to_tmp_and_move",
                "hf_hub_download",
                "snapshot_download",
            ),
        ),
    ),
    Cause(
        name="network down",
        words="A server could not be reached: {said}",
        advice="Check the network; trackers such as wandb can be left out or set offline (WANDB_MODE=offline).",
        origin=MACHINE,
        shown=(
            says(
                r"(?:Name or service not known|Temporary failure in name resolution|getaddrinfo failed"
                r"|nodename nor servname"
                r"|Network is unreachable|Max retries exceeded with url|NameResolutionError|No route to host).*",
                "requests.exceptions.ConnectionError:"
                " (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443):"
                ' Max retries exceeded with url: /openai/clip"))',
                whole=True,
            ),
            says(
                r"^(?:\w+\.)*(?:ConnectTimeout|ReadTimeout|ReadTimeoutError|SSLError|ProxyError|ConnectError"
                r"|ReadError): .*",
                "requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co',"
                ' port=443): Read timed out."))',
            ),
            says(
                r"(?:HTTPError|HfHubHTTPError): (?:429|5\d\d) .*",
                "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url:"
                " https://huggingface.co/api/models/x",
            ),
        ),
    ),
    Cause(
        name="tracker not logged in",
        words="The tracker of the training is not logged in: {said}",
        advice="Log in once (wandb login), pass --wandb_api_key, or take --log_with out.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"(?:wandb\.\S*UsageError|UsageError): .*|wandb: ERROR (?:api_key|API key) .*",
                "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
            ),
        ),
    ),
)
