import os
import sys
from importlib import metadata
from pathlib import Path

if not metadata.entry_points(group="pytest11", name="equipart"):  # the package is not installed, but built beside its source
    sys.path.insert(0, str(Path(__file__).parent.parent))
    pytest_plugins = ["equipart.torch.pytest"]
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
