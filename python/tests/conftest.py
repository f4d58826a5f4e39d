import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

pytest_plugins = ["equipart.torch.pytest"]
