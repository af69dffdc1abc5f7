"""A trainer without a model that plays one scene: upstream's flags, files and output, and a fault of its users'.

SCENE names what goes wrong, SCENE_ONCE a file that the first process takes away: it goes wrong there alone, and in
each without the variable. Its weights list the steps they embody, as those of ../fake do, whose files it writes.
"""

import argparse
import importlib.util
import math
import multiprocessing
import os
import signal
import sys
import threading
import time

_spec = importlib.util.spec_from_file_location(
    "fake", os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fake", "flux_train_network.py")
)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

EPOCHS, BATCHES, SAVE_EVERY = 3, 10, 4
STEP, IMAGES, SLOW_IMAGE = 0.03, 6, 0.7
SCENES, UNTRAINED = {}, -1.0


def scene(place):
    """Register what happens at a place: load, caching (per image), resume, steps (before each), loss or save."""

    def keep(play):
        SCENES[play.__name__] = (place, play)
        return play

    return keep


@scene("caching")
def waits_for_nothing(step):
    threading.Event().wait()


@scene("steps")
def spins(step):
    while step >= 1:
        pass


@scene("steps")
def loses_its_worker(step):
    """A worker delivers each batch; somebody stops it."""
    if step == 6:
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context("fork").Process(target=theirs.recv, daemon=True)
        worker.start()
        os.kill(worker.pid, signal.SIGSTOP)
        ours.recv()


@scene("steps")
def waits_for_a_rank(step):
    if step == 6:
        wait_for_everyone()


def wait_for_everyone():
    threading.Event().wait()


@scene("load")
def runs_out_of_memory(step):
    raise MemoryError


@scene("steps")
def runs_out_of_gpu_memory(step):
    if step == 6:
        raise RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 15.77 GiB")


@scene("steps")
def ignores_every_request(step):
    """And has a child that is stopped, which outlives its parent."""
    if step > 1:
        time.sleep(10 * STEP)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)


@scene("resume")
def cannot_read_random_states(state):
    """As accelerate does with random states it cannot read, of the newest state alone."""
    with open(os.path.join(state, "random_states_0.pkl"), "rb") as file:
        if b"no pickle" in file.read():
            print("Could not load random states", file=sys.stderr)
            raise KeyError("step")


@scene("steps")
def dies_at_random(step):
    """Twice in a run, so that it is resumed from what was resumed."""
    if step in (7, 8):
        os.kill(os.getpid(), signal.SIGKILL)


@scene("load")
def downloads_for_ever(step):
    print("\rflux1-dev.safetensors:  40%|####      | 9.50G/23.8G [00:41<01:02, 230MB/s]", end="", file=sys.stderr)
    sys.stderr.flush()
    threading.Event().wait()


@scene("caching")
def caches_slowly(step):
    time.sleep(SLOW_IMAGE)


@scene("steps")
def takes_long_for_the_first(step):
    if step == 1:
        time.sleep(3 * SLOW_IMAGE)


@scene("save")
def saves_slowly(step):
    time.sleep(2 * SLOW_IMAGE)


@scene("steps")
def samples_slowly(step):
    if step in (8, 16):
        print("\ngenerating sample images at step: 8", flush=True)
        for picture in range(3):
            time.sleep(SLOW_IMAGE)
            print(f"\r {50 * picture}%|#   | {picture}/3 [00:01<00:05]", end="", file=sys.stderr, flush=True)


@scene("steps")
def logs_without_end(step):
    """A megabyte a step."""
    for _ in range(10):
        sys.stderr.write(("W" * 99 + "\n") * 1000)


@scene("loss")
def loses_its_mind(step):
    return step >= 6


def played():
    """Return the scene of this process: (place, what happens there)."""
    once = os.environ.get("SCENE_ONCE")
    if once:
        try:
            os.remove(once)
        except FileNotFoundError:
            return None, None
    return SCENES.get(os.environ.get("SCENE", ""), (None, None))


def met(place, at):
    """Play the scene if this is its place; return what it returns."""
    return SCENE[1](at) if SCENE[0] == place else None


def network(steps):
    """Return weights that are as many from the first step to the last."""
    return steps + [UNTRAINED] * (EPOCHS * BATCHES - len(steps))


def parsed():
    parser = argparse.ArgumentParser()
    for flag in ("output_dir", "output_name", "resume", "dataset_config", "learning_rate"):
        parser.add_argument(f"--{flag}")
    for flag, value in (("initial_step", None), ("initial_epoch", None), ("max_train_epochs", EPOCHS)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--save_every_n_steps", type=int, default=SAVE_EVERY)
    parser.add_argument("--save_every_n_epochs", type=int)
    for flag in ("save_state", "skip_until_initial_step"):
        parser.add_argument(f"--{flag}", action="store_true")
    return parser.parse_args()


def main():
    args = parsed()
    print("preparing accelerator", flush=True)
    met("load", 0)
    print("caching latents...", flush=True)
    for image in range(IMAGES):
        met("caching", image)
        print(f"\r {image}%|#   | {image + 1}/{IMAGES} [00:01<00:05]", end="", file=sys.stderr, flush=True)
    steps, initial = [], args.initial_step or 0
    if args.resume:
        met("resume", args.resume)
        held = fake.load_tensors(os.path.join(args.resume, "model.safetensors"))
        steps = [step for step in held if step != UNTRAINED]
    planned = args.max_train_epochs * BATCHES
    print(f"running training\n  num batches per epoch: {BATCHES}\n  total optimization steps: {planned}", flush=True)
    first = initial // BATCHES
    train(args, steps, planned, first, initial - first * BATCHES)
    fake.save_tensors(os.path.join(args.output_dir, f"{args.output_name}.safetensors"), network(steps))
    print("model saved.", flush=True)


def train(args, steps, planned, first, skip):
    """Train from a place within an epoch on, counting as upstream does: this process alone, on the bar."""
    local, bar = skip, 0
    for epoch in range(first, args.max_train_epochs):
        print(f"\nepoch {epoch + 1}/{args.max_train_epochs}\n", flush=True)
        for index in range(skip, BATCHES):
            met("steps", bar + 1)
            time.sleep(STEP)
            steps.append(math.nan if met("loss", bar + 1) else float(epoch * BATCHES + index))
            local, bar = local + 1, bar + 1
            loss = "nan" if math.isnan(steps[-1]) else "0.5"
            shown = f"\rsteps: 10%|#  | {bar}/{planned} [00:01<00:05, 5.10it/s, avr_loss={loss}]"
            print(shown, end="", file=sys.stderr, flush=True)
            if args.save_state and local % args.save_every_n_steps == 0:
                print(f"\nsaving checkpoint: {local}", flush=True)
                met("save", bar)
                fake.save_state(args, f"{args.output_name}-step{local:08d}", epoch + 1, local, network(steps))
        skip = 0


SCENE = played()

if __name__ == "__main__":
    main()
