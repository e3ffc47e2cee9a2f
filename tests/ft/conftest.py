"""What tests of fault-tolerant training share: its modules lie beside them."""

import os
import sys

sys.path.append(os.path.dirname(__file__))
