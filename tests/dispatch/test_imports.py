"""What importing dispatch loads: neither Ray nor an array library."""

import subprocess
import sys


def test_dispatch_alone_loads_no_ray_no_numpy_and_no_torch():
    code = (
        "import sys, schedulemesh.dispatch as d\n"
        "rows = d.shard(['a', 'b'], d.Sharding.of(d.ParallelLayout.of(dp=2), dp=0))\n"
        "assert rows.gather() == ['a', 'b']\n"
        "assert not {'ray', 'numpy', 'torch'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
