"""Program of a staging pod, `python -m cluster.eks.staging_pod`, which reports in frames as a host does."""

import os
import sys

from cluster.eks.staging import part_of_pod
from cluster.staging.onhost import s3

if __name__ == "__main__":
    sys.exit(s3.main(*part_of_pod(os.environ)))
