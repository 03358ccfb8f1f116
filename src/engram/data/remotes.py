"""Where the published data sets come from: official addresses and published checksums."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Remote:
    """One file to fetch into ROOT/`folder`.

    An archive names what it `holds`; it is unpacked in ROOT and gives `folder`.
    """

    url: str
    md5: str
    folder: str
    holds: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]

    def target(self, root: Path) -> Path:
        """What exists once it is fetched."""
        return root / self.folder if self.holds else root / self.folder / self.file_name

    def by_hand(self, root: Path) -> str:
        """What to do where this machine can't fetch it."""
        if self.holds:
            return f"to place it by hand, unpack {self.url} in {root} so that {self.target(root)} exists"
        return f"to place it by hand, save {self.url} as {self.target(root)}"


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

# The published sums are MD5: enough against damage, no proof against malice, so the readers in `sources`
# treat every file as hostile all the same.
REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": (
        Remote(f"{_MNIST}/train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "MNIST/raw"),
        Remote(f"{_MNIST}/train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", "MNIST/raw"),
        Remote(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", "MNIST/raw"),
        Remote(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", "MNIST/raw"),
    ),
    "fashion-mnist": (
        Remote(f"{_FASHION}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "FashionMNIST/raw"),
        Remote(f"{_FASHION}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", "FashionMNIST/raw"),
        Remote(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", "FashionMNIST/raw"),
        Remote(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", "FashionMNIST/raw"),
    ),
    "cifar10": (
        Remote(
            f"{_CIFAR}/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
            (*_BATCHES, "test_batch", "batches.meta"),
        ),
    ),
    "cifar100": (
        Remote(
            f"{_CIFAR}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
            ("train", "test", "meta"),
        ),
    ),
}
