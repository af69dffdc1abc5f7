"""A trainer that tells everybody everything: its command, its environment, its settings, a private key.

The first attempt says it all and hangs with a secret in a local variable; the second says it all, leaves words as the
guard does, and raises an error that holds one.
"""

import json
import os
import sys
import time


def say_all(words):
    print("Namespace(" + ", ".join(f"{word!r}" for word in words) + ")")
    print(" ".join(words))
    print(json.dumps(dict(os.environ)))
    for name, value in os.environ.items():
        print(f"{name} is {value}" if name != "KEY_FILE_TEXT" else value)
    with open(words[words.index("--config_file") + 1]) as file:
        print(file.read())
    sys.stdout.flush()


def leave_words(secret):
    root, mark = os.environ["FLUXGUARD_RUN"], os.environ["FLUXGUARD_ATTEMPT"]
    values = {
        "version": 1,
        "attempt": mark,
        "cause": "fetch",
        "what": f"asking https://x/?token={secret}",
        "waited": 1.0,
    }
    for name in ("last-words.0.json", "healed.3.jsonl"):
        with open(os.path.join(root, name), "w") as file:
            file.write(json.dumps({**values, "limit": 1.0, "time": time.time(), "verdict": "again"}) + "\n")


def main():
    secret = os.environ["MY_SERVICE_KEY"]
    say_all(sys.argv)
    marker = os.path.join(os.path.dirname(os.environ["KEY_FILE_PATH"]), "second")
    if not os.path.exists(marker):
        open(marker, "w").close()
        time.sleep(600)
    leave_words(secret)
    raise RuntimeError(f"401 for https://hub/x with {secret}")


main()
