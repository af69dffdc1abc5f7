"""Numbers that are none."""

from __future__ import annotations

from fluxguard.supervisor.causes.cause import Cause, Judged, Told, says

_ADVICE = "Lower the learning rate, train in bf16 instead of fp16, and look at the images and captions it began with."

NOT_FINITE = "loss not finite"

NOT_NUMBERS = "weights not finite"

CAUSES = (
    Cause(
        name=NOT_FINITE,
        words="The loss is not a number: what is trained from here on is useless.",
        advice=_ADVICE,
        again=False,
        fixed=True,
        shown=(
            Told("loss not finite", "{what}."),
            Judged(
                "`fluxguard explain`: the last bar of the output shows avr_loss=nan, and nothing else explains an end"
            ),
            says(
                r"^fluxguard: the loss was not a number.*",
                "fluxguard: the loss was not a number 20 times in a row, from step 41 on; this process ends with"
                " code 78",
            ),
            says(
                r"(?i)^(?:ValueError|RuntimeError|FloatingPointError|AssertionError): .*loss (?:is|became"
                r"|was) (?:nan|not finite|inf).*",
                "ValueError: loss is nan",
            ),
        ),
    ),
    Cause(
        name=NOT_NUMBERS,
        words="The trainer said it was done, but its final weights are useless: {said}.",
        advice=_ADVICE,
        fixed=True,
        shown=(Judged("exit code 0, but the final weights hold values that are no numbers"),),
    ),
    Cause(
        name="cache not finite",
        words="The cached latents or text encoder outputs hold values that are no numbers: {said}",
        advice="Use the original ae.safetensors and t5xxl, not a converted one; add --no_half_vae where there is that"
        " flag; delete the .npz files, so that they are made anew.",
        again=False,
        shown=(
            says(
                r"NaN detected in (?:latents|text encoder outputs).*",
                "RuntimeError: NaN detected in latents: /data/img/0003.png",
            ),
        ),
    ),
    Cause(
        name="no gradient",
        words="No part of what is to be trained takes part in the loss: {said}",
        advice="Check --network_args (train_blocks, train_double_block_indices) and the network module: nothing is"
        " trained.",
        again=False,
        shown=(
            says(
                r"element 0 of tensors does not require grad and does not have a grad_fn"
                r"|optimizer got an empty parameter list",
                "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
            ),
            says(
                r"No inf checks were recorded for this optimizer",
                "AssertionError: No inf checks were recorded for this optimizer.",
            ),
        ),
    ),
)
