"""Program of a staging pod, `python -m eks.staging_pod`, which reports in frames as a host does."""

import os
import sys

from cluster.stage.onhost import s3
from eks.staging import part_of_pod

if __name__ == "__main__":
    sys.exit(s3.main(*part_of_pod(os.environ)))
