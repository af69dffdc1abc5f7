"""Outside of a training, in a notebook or a page, nothing is ended: a limit that passes is an error to catch."""

import threading
from concurrent.futures import Future

import fluxguard
from fluxguard.errors import DeadlineExceeded

preview = Future()  # of a job that never ends

try:
    with fluxguard.fail_after(0.5, "the preview"):
        fluxguard.result(preview)
except DeadlineExceeded as error:
    print(error)

try:
    fluxguard.result(preview, "a picture", limit=0.5)
except TimeoutError as error:  # which a DeadlineExceeded is, on every Python
    print(error)

with fluxguard.exit_after(0.1, "the preview"):  # ends trainers only
    threading.Event().wait(0.3)
print("the page lives on")
