"""One rank of `fluxguard doctor --distributed`, with torch imported before: doctor.py [OPTION...]."""

import sys

import torch

from fluxguard import cli

torch.set_num_threads(1)
sys.argv[1:] = ["doctor", "--distributed", *sys.argv[1:]]
cli.main()
