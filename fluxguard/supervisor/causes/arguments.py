"""Arguments that the trainer does not take, flags that exclude each other, and data sets that hold nothing."""

from __future__ import annotations

from fluxguard.supervisor.causes.cause import Cause, Says, says
from fluxguard.supervisor.causes.signatures import INPUT


def _conflict(name: str, words: str, advice: str, *shown: Says) -> Cause:
    return Cause(name=name, words=words, advice=advice, shown=shown, origin=INPUT, again=False)


_TAKE_OUT = "Correct the command."

CAUSES = (
    _conflict(
        "stray backslash",
        "The command has a backslash that ends no line, so that the trainer got it as an argument.",
        "Take the lone backslash out of train.sh; it comes from an advanced option that was left empty.",
        says(
            r"error: unrecognized arguments: (?:\S+ )*\\(?:\s|$)",
            "flux_train_network.py: error: unrecognized arguments: \\",
        ),
    ),
    _conflict(
        "text encoder trained and cached",
        "The text encoder cannot be trained while its outputs are cached.",
        "Add --network_train_unet_only, or take out --cache_text_encoder_outputs and its _to_disk.",
        says(
            r"network for Text Encoder cannot be trained with caching Text Encoder outputs"
            r"|T5XXL is trained, so cache_text_encoder_outputs cannot be used",
            "ValueError: T5XXL is trained, so cache_text_encoder_outputs cannot be used",
        ),
    ),
    _conflict(
        "captions changed and cached",
        "Captions that are shuffled or dropped cannot be cached.",
        "Take shuffle_caption, caption_dropout_rate, caption_tag_dropout_rate and token_warmup_step out of the"
        " data set,"
        " or take out --cache_text_encoder_outputs.",
        says(
            r"when caching Text Encoder output, .*cannot be used",
            "AssertionError: when caching Text Encoder output, either caption_dropout_rate, shuffle_caption,"
            " token_warmup_step or caption_tag_dropout_rate cannot be used",
        ),
    ),
    _conflict(
        "images changed and cached",
        "Images that are cropped or coloured at random cannot be cached.",
        "Take color_aug and random_crop out of the data set, or take out --cache_latents.",
        says(
            r"when caching latents, .*cannot be used",
            "AssertionError: when caching latents, either color_aug or random_crop cannot be used",
        ),
    ),
    _conflict(
        "fused backward pass",
        "--fused_backward_pass does not fit this training.",
        "Take --fused_backward_pass out: it is for full fine-tuning with Adafactor, not for a LoRA.",
        says(
            r"fused_backward_pass (?:currently only works with|does not work with) .*",
            "AssertionError: fused_backward_pass currently only works with optimizer_type Adafactor",
        ),
        says(
            r"error: unrecognized arguments: .*--fused_backward_pass",
            "flux_train_network.py: error: unrecognized arguments: --fused_backward_pass",
        ),
        says(
            r"AttributeError: .*has no attribute 'step_param'",
            "AttributeError: 'AcceleratedOptimizer' object has no attribute 'step_param'",
        ),
    ),
    _conflict(
        "bad argument",
        "The trainer does not accept its command line: {said}",
        _TAKE_OUT + " A flag of a newer or older sd-scripts is unknown to this one.",
        says(
            r"error: (?:unrecognized arguments|argument |the following arguments|ambiguous option).*",
            "flux_train_network.py: error: unrecognized arguments: --blocks_to_swop 18",
        ),
        says(r"^ValueError: Unknown optimizer type: .*", "ValueError: Unknown optimizer type: adamw9bit"),
        says(
            r"^AttributeError: module 'torch\.optim\S*' has no attribute .*",
            "AttributeError: module 'torch.optim' has no attribute 'adamw9'",
        ),
        says(r"^ValueError: '\S+' is not a valid \w+", "ValueError: 'cosinus' is not a valid SchedulerType"),
        says(
            r"^(?:train\.sh|.*\.sh|bash|/bin/sh).*: (?:(?<!accelerate: )command not found|syntax error.*)",
            "train.sh: line 12: --sample_every_n_steps=100: command not found",
        ),
    ),
    _conflict(
        "persistent workers without workers",
        "Persistent loader workers were asked for, but no workers.",
        "Take --persistent_data_loader_workers out, or set --max_data_loader_n_workers to 1 or more.",
        says(
            r"persistent_workers option needs num_workers > 0",
            "ValueError: persistent_workers option needs num_workers > 0",
        ),
    ),
    _conflict(
        "split mode on several GPUs",
        "--split_mode does not work on several GPUs.",
        "Use --blocks_to_swap instead of --split_mode, or one GPU.",
        says(
            r"'DistributedDataParallel' object has no attribute 'train_blocks'",
            "AttributeError: 'DistributedDataParallel' object has no attribute 'train_blocks'",
        ),
    ),
    _conflict(
        "too many blocks swapped",
        "More blocks are to be swapped than the model can spare: {said}",
        "Lower --blocks_to_swap: FLUX allows 35 at most, in sd-scripts of 2024-11 only 28.",
        says(
            r"Cannot swap more than \d+ (?:double )?blocks.*",
            "AssertionError: Cannot swap more than 17 double blocks and 36 single blocks. Requested 20 double"
            " blocks and 40 single blocks.",
        ),
        says(r"blocks_to_swap must be less than .*", "AssertionError: blocks_to_swap must be less than 35"),
    ),
    _conflict(
        "block swap and offloaded checkpointing",
        "Blocks cannot be swapped while checkpoints are offloaded to the CPU.",
        "Take out --cpu_offload_checkpointing or --blocks_to_swap.",
        says(
            r"blocks_to_swap is not supported with cpu_offload_checkpointing",
            "AssertionError: blocks_to_swap is not supported with cpu_offload_checkpointing",
        ),
    ),
    _conflict(
        "fp8 without mixed precision",
        "A precision was asked for that does not fit --mixed_precision: {said}",
        "Set --mixed_precision bf16.",
        says(
            r"(?:fp8_base|full_bf16|full_fp16) requires (?:mixed precision|torch).*",
            "AssertionError: fp8_base requires mixed precision='fp16' or 'bf16'",
        ),
        says(
            r"^ValueError: (?:fp16|bf16) mixed precision requires (?!a GPU).*",
            "ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device.",
        ),
    ),
    _conflict(
        "already trained to the end",
        "The state to go on from has all planned steps already: nothing is left to train.",
        "The training is done. To train on, raise --max_train_epochs or --max_train_steps.",
        says(
            r"max_train_steps should be greater than initial step.*",
            "AssertionError: max_train_steps should be greater than initial step: 40 vs 40",
        ),
    ),
    _conflict(
        "no images found",
        "The data set holds no images that the trainer can use.",
        "Check the image folder in dataset.toml; with --train_data_dir it must be the parent of folders like 10_name.",
        says(
            r"No data found\. Please",
            "ERROR    No data found. Please verify arguments (train_data_dir must be the parent of folders with"
            " images)",
        ),
        says(
            r"num_samples should be a positive integer value, but got num_samples=0",
            "ValueError: num_samples should be a positive integer value, but got num_samples=0",
        ),
    ),
    _conflict(
        "data set not valid",
        "The description of the data set is not valid: {said}",
        "Correct dataset.toml.",
        says(
            r"(?:voluptuous\.error\.)?MultipleInvalid: .*|Invalid user config.*",
            "voluptuous.error.MultipleInvalid: extra keys not allowed @ data['datasets'][0]['resolutoin']",
        ),
        says(
            r"(?:TomlDecodeError|TOMLDecodeError): .*|Error on parsing TOML.*",
            "toml.decoder.TomlDecodeError: Key group not on a line by itself. (line 1 column 1 char 0)",
        ),
        says(
            r"(?:min_bucket_reso must be equal or less"
            r"|max_bucket_reso must be equal or greater) than resolution.*"
            r"|bucket_reso_steps is \d+\. it must be divisible.*",
            "AssertionError: min_bucket_reso must be equal or less than resolution",
        ),
        says(
            r"caption file is empty.*|illegal char in file \(not UTF-8\).*",
            "AssertionError: caption file is empty / : /data/img/0003.txt",
        ),
        says(
            r"^(?:AssertionError: )?(?:image_dir must be specified|resolution is required"
            r"|metadata_file must be specified).*",
            "AssertionError: resolution is required",
        ),
        says(
            r"there are (?:no valid|duplicated) (?:image|subset).*|no metadata / .*",
            "ValueError: no metadata / : meta.json",
        ),
    ),
    _conflict(
        "flags that exclude each other",
        "Two flags of the command exclude each other: {said}",
        "Take one of them out.",
        says(
            r"^(?:AssertionError|ValueError): .*(?:cannot be (?:used|enabled)|both option"
            r"|can be enabled only with|is required when|requires noise_offset|is not supported with"
            r"|cannot be trained with).*",
            "AssertionError: both option use_8bit_adam and optimizer_type are specified",
        ),
    ),
)
