"""A trainer without a model: upstream's flags, files, output and run-local counting.

Its weights list the steps they embody. Faults, by environment: FAKE_STEP seconds a step takes; FAKE_FAULTS a folder in
which a file named `hang`, `raise`, `nan`, `spin`, `stubborn` or `zero` (exit 0 at once), holding a step of this
process, makes that happen there once.
"""

import argparse
import json
import math
import os
import signal
import struct
import sys
import threading
import time
import zipfile

UNTRAINED = -1.0


def save_tensors(path, steps):
    data = struct.pack(f"<{len(steps)}d", *steps)
    header = {"steps": {"dtype": "F64", "shape": [len(steps)], "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def load_tensors(path):
    with open(path, "rb") as file:
        data = file.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return list(struct.unpack(f"<{(len(data) - start) // 8}d", data[start:]))


def save_state(args, name, epoch, step, steps):
    folder = os.path.join(args.output_dir, f"{name}-state")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "train_state.json"), "w") as file:
        json.dump({"current_epoch": epoch, "current_step": step}, file)
    room = max(0, args.max_train_epochs * 10 - len(steps))  # of one shape in every state, as a network is
    save_tensors(os.path.join(folder, "model.safetensors"), steps + [UNTRAINED] * room)
    for part in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
        with zipfile.ZipFile(os.path.join(folder, part), "w") as archive:
            archive.writestr("state/data.pkl", b"\x80\x02}.")  # an empty dict
            archive.writestr("state/data/0", os.urandom(2000))


def fault(name, step):
    path = os.path.join(os.environ.get("FAKE_FAULTS", "/nonexistent"), name)
    try:
        with open(path) as file:
            wanted = int(file.read() or 0)
    except OSError:
        return False
    if wanted != step:
        return False
    os.remove(path)
    return True


def main():
    parser = argparse.ArgumentParser()
    for flag, kind in [("output_dir", str), ("output_name", str), ("resume", str), ("initial_step", int)]:
        parser.add_argument(f"--{flag}", type=kind)
    for flag, value in [("initial_epoch", None), ("max_train_epochs", 4), ("save_every_n_steps", None)]:
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--save_every_n_epochs", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    for flag in ("dataset_config", "learning_rate"):
        parser.add_argument(f"--{flag}")
    for flag in ("save_state", "skip_until_initial_step"):
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    if fault("stubborn", 0):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    batches, gas = 10, args.gradient_accumulation_steps
    spe = math.ceil(batches / gas)
    planned = args.max_train_epochs * spe
    steps, initial = [], 0
    if args.resume:
        held = load_tensors(os.path.join(args.resume, "model.safetensors"))
        steps = [step for step in held if step != UNTRAINED]
        with open(os.path.join(args.resume, "train_state.json")) as file:
            initial = json.load(file)["current_step"]
    if args.initial_step is not None:
        initial = args.initial_step
    elif args.initial_epoch is not None:
        initial = (args.initial_epoch - 1) * spe
    assert planned > initial, "max_train_steps should be greater than initial step"
    first = initial // spe if not args.skip_until_initial_step else initial * gas // spe
    skip = initial * gas - first * batches if args.skip_until_initial_step else 0
    print(f"running training\n  num batches per epoch: {batches}\n  total optimization steps: {planned}", flush=True)
    local, bar = skip, 0
    for epoch in range(first, args.max_train_epochs):
        print(f"\nepoch {epoch + 1}/{args.max_train_epochs}\n", flush=True)
        for index in range(spe):
            if skip > 0:
                skip -= 1
                continue
            time.sleep(float(os.environ.get("FAKE_STEP", "0.02")))
            steps.append(float(epoch * spe + index))
            local, bar = local + 1, bar + 1
            print(
                f"\rsteps: 10%|#  | {bar}/{planned} [00:01<00:05, 5.10it/s, avr_loss=0.5]",
                end="",
                file=sys.stderr,
                flush=True,
            )
            if fault("hang", bar):
                threading.Event().wait()
            if fault("spin", bar):
                while True:
                    pass
            if fault("raise", bar):
                raise RuntimeError("the fake was told to fail")
            if fault("nan", bar):
                steps[-1] = math.nan
            if fault("zero", bar):
                return
            if args.save_state and args.save_every_n_steps and local % args.save_every_n_steps == 0:
                save_state(args, f"{args.output_name}-step{local:08d}", epoch + 1, local, steps)
        if args.save_state and args.save_every_n_epochs and epoch + 1 < args.max_train_epochs:
            save_state(args, f"{args.output_name}-{epoch + 1:06d}", epoch + 1, local, steps)
    save_tensors(os.path.join(args.output_dir, f"{args.output_name}.safetensors"), steps)
    print("model saved.", flush=True)


if __name__ == "__main__":
    main()
