"""Files: caches, states and models that are missing, broken, or not what they should be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fluxguard.launch.remedies import CACHE_ASIDE
from fluxguard.supervisor.causes.cause import Cause, Seen, Told, says, waits
from fluxguard.supervisor.causes.signatures import INPUT, MACHINE, shortened

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom

_STATE_ADVICE = (
    "fluxguard resumes only from states that it has verified: start the run under `fluxguard supervise`, or choose an"
    " older state for --resume."
)
_MISFIT = re.compile(r"^RuntimeError: Error\(s\) in loading state_dict for (\w+):")
_BASE_MODELS = frozenset({"Flux", "Chroma", "AutoEncoder", "CLIPTextModel", "T5EncoderModel"})
_LOADS_MODEL = re.compile(r"\bin load_(?:flow_model|ae|clip_l|t5xxl|controlnet|target_model)\b")
_RESUMES = re.compile(r"\bin (?:load_state|load_accelerator_state|resume_from_local_or_hf_if_specified)\b")


def _misfit(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    """The weights of a base model do not fit into it, while it is loaded and not while a state is."""
    end = evidence.closing
    texts = end.texts if end.raised else []
    at, error = next(((at, found) for at, text in enumerate(texts) if (found := _MISFIT.search(text))), (0, None))
    if error is None or any(_RESUMES.search(text) for text in texts):
        return ()
    if error[1] not in _BASE_MODELS and not any(_LOADS_MODEL.search(text) for text in texts):
        return ()
    return tuple(shortened(text) for text in texts[at : at + 2])


CAUSES = (
    Cause(
        name="cache file",
        words="A cache file is broken: {said}",
        advice="If it comes again, delete the .npz files beside the images; they are made anew.",
        remedies=(CACHE_ASIDE,),
        fixed=True,
        shown=(
            Told("cache file", "The cache file {file} is broken; it was set aside and will be made again."),
            says(r"CacheBroken: .*", "fluxguard.errors.CacheBroken: /data/img/0003.npz is broken (Bad CRC-32)"),
            says(r"BadZipFile: .*", "zipfile.BadZipFile: Bad CRC-32 for file 't5_out.npy'"),
            says(r"^EOFError: No data left in file", "EOFError: No data left in file"),
            says(
                r"^KeyError: ['\"]+[\w.]+ is not a file in the archive.*",
                "KeyError: 't5_out is not a file in the archive'",
            ),
            says(
                r"^ValueError: (?:latents\S* not found in .*\.npz|This file contains pickled \(object\) data.*"
                r"|cannot reshape array of size .* into shape.*|Cannot load file containing pickled data.*)",
                "ValueError: latents_64x64 not found in /data/img/0003_0512x0512_flux.npz",
            ),
            says(r"Error loading file:.*", "ERROR    Error loading file: /data/img/0003_flux_te.npz", echo=True),
        ),
    ),
    Cause(
        name="broken image",
        words="An image cannot be read: {said}",
        advice="Replace or remove that image; the line above the error names it.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"UnidentifiedImageError: .*",
                "PIL.UnidentifiedImageError: cannot identify image file '/data/img/0007.png'",
            ),
            says(
                r"^OSError: (?:image file is truncated.*|broken data stream when reading image file"
                r"|unrecognized data stream contents.*)",
                "OSError: image file is truncated (12 bytes not processed)",
            ),
            says(
                r"DecompressionBombError: .*",
                "PIL.Image.DecompressionBombError: Image size (256000000 pixels) exceeds limit of 178956970 pixels",
            ),
        ),
    ),
    Cause(
        name="state of another network",
        words="The state or weights to go on from belong to another network: {said}",
        advice="Use the network_dim, network_args and model that the state was made with, or start anew (--fresh).",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"size mismatch for .*",
                "\tsize mismatch for lora_unet_double_blocks_0.lora_down.weight: copying a param with shape"
                " torch.Size([16, 3072])",
            ),
            says(
                r"^ValueError: loaded state dict (?:contains a parameter group"
                r"|has a different number of parameter groups).*",
                "ValueError: loaded state dict contains a parameter group that doesn't match the size of"
                " optimizer's group",
            ),
            says(
                r"^RuntimeError: Error\(s\) in loading state_dict for .*",
                "RuntimeError: Error(s) in loading state_dict for LoRANetwork:",
            ),
        ),
    ),
    Cause(
        name="broken state",
        words="The state to go on from is broken or incomplete: {said}",
        advice=_STATE_ADVICE,
        shown=(
            says(r"^KeyError: 'step'", "KeyError: 'step'"),
            says(
                r"UnpicklingError: (?!invalid load key, '[v<]').*", "_pickle.UnpicklingError: pickle data was truncated"
            ),
            says(r"^EOFError: Ran out of input", "EOFError: Ran out of input"),
            says(
                r"PytorchStreamReader failed .*",
                "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            ),
            says(
                r"No such file or directory: .*(?:optimizer|scheduler|sampler|random_states_\d+|train_state"
                r"|scaler)\.(?:bin|pkl|pt|json).*",
                "FileNotFoundError: [Errno 2] No such file or directory: 'out/lora-000001-state/optimizer.bin'",
                whole=True,
            ),
            says(
                r"^ValueError: Tried to find .* but folder does not exist",
                "ValueError: Tried to find /out/lora-000001-state but folder does not exist",
            ),
            says(
                r"Weights only load failed.*|WeightsUnpickler error: .*",
                "WeightsUnpickler error: Unsupported global: GLOBAL numpy._core.multiarray._reconstruct was not"
                " an allowed global by default.",
            ),
            says(
                r"NotADirectoryError: .*\.safetensors.*",
                "NotADirectoryError: [Errno 20] Not a directory: '/out/lora.safetensors/random_states_0.pkl'",
            ),
        ),
    ),
    Cause(
        name="wrong model file",
        words="A model file is not the model that it should be: it is cut short, a web page or a pointer was saved in"
        " its place, or it holds another model.",
        advice="Look at its size (FLUX.1-dev is 23.8 GB, or 11.9 GB in fp8), and download it again; for a git checkout:"
        " git lfs pull. Fill, Control and Redux models have another shape: train on FLUX.1-dev or schnell itself.",
        origin=INPUT,
        again=False,
        shown=(
            Seen("the weights of a base model do not fit into it, while it is loaded", _misfit),
            says(
                r"Error while deserializing header: .*|^(?:\w+\.)*SafetensorError: (?!Error while serializing).*",
                "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
            ),
            says(r"invalid load key, '[v<]'", "_pickle.UnpicklingError: invalid load key, 'v'."),
            says(
                r"^ValueError: Unsupported fp8 model dtype: .*",
                "ValueError: Unsupported fp8 model dtype: torch.float8_e5m2",
            ),
            says(r"^OSError: No such device \(os error 19\)", "OSError: No such device (os error 19)"),
            says(
                r"^KeyError: '(?:double_blocks|img_in|txt_in|decoder|encoder|text_model|guidance_in)\S*'",
                "KeyError: 'img_in.weight'",
            ),
        ),
    ),
    Cause(
        name="missing file",
        words="A file is missing: {said}",
        advice="Put the file there, or correct its path, then start the run again.",
        origin=INPUT,
        again=False,
        shown=(
            says(r"^FileNotFoundError: .*", 'FileNotFoundError: No such file or directory: "/models/vae/ae.sft"'),
            says(r"^ValueError: file not found / .*", "ValueError: file not found / : dataset.toml"),
            says(
                r"can't open file '.*': \[Errno 2\].*",
                "python: can't open file '/sd-scripts/flux_train_network.py': [Errno 2] No such file or directory",
                whole=True,
            ),
        ),
    ),
    Cause(
        name="file read",
        words="A file gave no new byte for too long: {said}",
        advice="Look at the disk or network share that holds the file.",
        fixed=True,
        shown=(
            Told("file read", "Reading {file} gave no new byte for {waited:.1f} s (limit {limit:g} s)."),
            says(
                r"DeadlineExceeded: reading .*",
                "fluxguard.errors.DeadlineExceeded: reading /data/img/0003.npz did not finish within 30 s",
            ),
            says(
                r"^fluxguard: reading .*did not finish within.*",
                "fluxguard: reading /data/img/0003.npz did not finish within 30 s; this process ends with code"
                " 75, another attempt may pass",
            ),
            waits("a wait for a read is open", r"^reading "),
        ),
    ),
    Cause(
        name="unreadable cache on a share",
        words="A model or cache cannot be mapped into memory from this disk: {said}",
        advice="Copy the models to a local disk, or add --disable_mmap_load_safetensors.",
        origin=MACHINE,
        again=False,
        shown=(
            says(
                r"^(?:RuntimeError|OSError): unable to mmap .*(?:No such device|Invalid argument).*",
                "RuntimeError: unable to mmap 246144152 bytes from file </mnt/nas/clip_l.safetensors>: No such"
                " device (19)",
            ),
        ),
    ),
)
