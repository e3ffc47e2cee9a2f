"""Tests of jobs share modules that lie beside them."""

import os
import sys

sys.path.append(os.path.dirname(__file__))
