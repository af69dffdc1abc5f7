"""Packages that are missing, that do not fit each other, or that do not fit the GPU."""

from __future__ import annotations

from fluxguard.supervisor.causes.cause import Cause, ends, says
from fluxguard.supervisor.causes.signatures import INPUT

_REINSTALL = "Install the versions that sd-scripts' requirements.txt names into the trainer's environment."

CAUSES = (
    Cause(
        name="torch without CUDA",
        words="The trainer's torch was built without CUDA: it cannot use the GPU.",
        advice="Install torch for CUDA from pytorch.org's own index into the trainer's environment.",
        origin=INPUT,
        again=False,
        shown=(says(r"Torch not compiled with CUDA enabled", "AssertionError: Torch not compiled with CUDA enabled"),),
    ),
    Cause(
        name="GPU not supported by torch",
        words="The trainer's torch has no code for this GPU: it is newer (or much older) than that torch.",
        advice="Install a torch that knows the GPU: an RTX 50 card needs torch 2.7 or newer, built for CUDA 12.8.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"no kernel image is available for execution on the device",
                "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            ),
            says(
                r"sm_\d+ is not compatible with the current PyTorch installation",
                "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch"
                " installation.",
                echo=True,
            ),
        ),
    ),
    Cause(
        name="safetensors too old",
        words="The installed safetensors is not the one that this sd-scripts was written for.",
        advice=_REINSTALL,
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"load_model\(\) got an unexpected keyword argument 'device'|(?:load_file"
                r"|safe_open)\(\) got an unexpected keyword argument",
                "TypeError: load_model() got an unexpected keyword argument 'device'",
            ),
        ),
    ),
    Cause(
        name="bitsandbytes broken",
        words="bitsandbytes, which the 8-bit optimizers need, does not work with this CUDA: {said}",
        advice="Install a bitsandbytes that fits torch's CUDA, or use --optimizer_type adafactor, which needs none.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"CUDA Setup failed despite (?:GPU|CUDA) being available.*"
                r"|libbitsandbytes_\S+(?:: cannot open shared object|: undefined symbol).*"
                r"|undefined symbol: cadam32bit.*",
                "OSError: /env/lib/bitsandbytes/libbitsandbytes_cpu.so: cannot open shared object file: No such"
                " file or directory",
            ),
            says(
                r"'NoneType' object has no attribute 'c\w+_grad_\w+'.*|Configured CUDA binary not found.*",
                "AttributeError: 'NoneType' object has no attribute 'cadam32bit_grad_fp32'",
            ),
            says(r"^ImportError: (?:No bitsandbytes|Please install bitsandbytes).*", "ImportError: No bitsandbytes"),
        ),
    ),
    Cause(
        name="xformers broken",
        words="xformers does not fit the installed torch or GPU: {said}",
        advice="Use --sdpa instead of --xformers, or install the xformers that was built for this torch.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"No operator found for `memory_efficient_attention_\w+`.*",
                "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:",
            ),
            says(r"^ImportError: No xformers.*|xformers wasn't build with CUDA support.*", "ImportError: No xformers"),
        ),
    ),
    Cause(
        name="triton missing",
        words="A part of the training needs triton, which is not there or does not work: {said}",
        advice="Take out --torch_compile and the optimizer that needs triton; on Windows install triton-windows.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"^(?:ModuleNotFoundError|ImportError): No module named 'triton.*",
                "ModuleNotFoundError: No module named 'triton'",
            ),
            says(
                r"(?:TritonMissing|Cannot find a working triton installation).*",
                "torch._inductor.exc.TritonMissing: Cannot find a working triton installation.",
            ),
        ),
    ),
    Cause(
        name="numpy does not fit",
        words="The installed numpy does not fit the other packages: {said}",
        advice="Install numpy below 2 (pip install 'numpy<2') into the trainer's environment.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"numpy\.dtype size changed, may indicate binary incompatibility.*"
                r"|numpy\.core\.multiarray failed to import.*",
                "ImportError: numpy.core.multiarray failed to import",
            ),
            says(r"^RuntimeError: Numpy is not available", "RuntimeError: Numpy is not available"),
            says(
                r"module 'numpy' has no attribute '\w+'.*|`np\.\w+` was removed in the NumPy 2.*",
                "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead.",
            ),
        ),
    ),
    Cause(
        name="CUDA library missing",
        words="A library of CUDA is missing or does not fit: {said}",
        advice="Install torch again from pytorch.org's own index; on Windows also the Visual C++ runtime.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"(?:lib(?:cudart|cudnn|cublas|cusparse|nvJitLink|nccl|nvrtc)\S*: (?:cannot open shared object"
                r"|undefined symbol|version `)).*",
                "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
                whole=True,
            ),
            says(
                r"Could not load library lib\S+.*|\[WinError (?:126|127|1114|193)\].*",
                "OSError: [WinError 126] The specified module could not be found. Error loading"
                ' "C:\\env\\torch\\lib\\fbgemm.dll"',
            ),
            ends(
                "exit code 0xC0000135, 0xC0000139 or 0xC0000142 of Windows: a library is missing or does not start",
                0xC0000135,
                0xC0000139,
                0xC0000142,
            ),
        ),
    ),
    Cause(
        name="missing package",
        words="The trainer's environment is not complete: {said}",
        advice="Install the package into the trainer's environment, or name the right one with --python.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"^(?:\w+\.)*ModuleNotFoundError: .*|(?:python\S*|\.exe): No module named \S+$",
                "ModuleNotFoundError: No module named 'voluptuous'",
            ),
            says(
                r"PackageNotFoundError: .*",
                "importlib.metadata.PackageNotFoundError: No package metadata was found for bitsandbytes",
            ),
            says(
                r"accelerate: (?:command )?not found"
                r"|'accelerate' is not recognized as an internal or external command.*",
                "train.sh: line 1: accelerate: command not found",
            ),
        ),
    ),
    Cause(
        name="version conflict",
        words="Two packages of the trainer's environment do not fit each other: {said}",
        advice=_REINSTALL,
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"^ImportError: (?:cannot import name|.* requires the|.*but found).*",
                "ImportError: cannot import name 'cached_download' from 'huggingface_hub'",
            ),
            says(
                r"^ImportError: .*", "ImportError: accelerate>=0.26 is required for a normal functioning of this module"
            ),
            says(
                r"^RuntimeError: Failed to import (?:transformers|diffusers|torch)\S* because of the following error.*",
                "RuntimeError: Failed to import diffusers.models.autoencoders.autoencoder_kl because of the"
                " following error (look up to see its traceback):",
            ),
            says(
                r"^TypeError: \S+\(\) got an unexpected keyword argument .*",
                "TypeError: Accelerator.__init__() got an unexpected keyword argument 'logging_dir'",
            ),
            says(
                r"^AttributeError: (?:partially initialized )?module '(?:torch|transformers|diffusers|accelerate"
                r"|huggingface_hub|cv2)[\w.]*' has no attribute .*",
                "AttributeError: module 'torch' has no attribute 'float8_e4m3fn'",
            ),
            says(r"operator torchvision::nms does not exist", "RuntimeError: operator torchvision::nms does not exist"),
        ),
    ),
)
