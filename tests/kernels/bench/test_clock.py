"""A device's bandwidth is measured by operations that move all the bytes that are counted."""

from __future__ import annotations

import pytest
import torch

from kernels.bench.clock import CudaClock, streams


def test_a_stream_writes_all_that_it_counts_and_reads_all_of_its_source() -> None:
    source = torch.arange(1.0, 4097.0)
    copy, scale, total = streams(source, target := torch.empty_like(source))
    for stream, factor in ((copy, 1), (scale, 3)):
        target.fill_(torch.nan)
        stream.run()
        assert torch.equal(target, factor * source)
        assert stream.num_bytes == 2 * 4096 * 4
    assert total.num_bytes == 4096 * 4
    read = total.run()
    assert isinstance(read, torch.Tensor) and read == source.sum()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_stream_is_faster_than_the_rate_that_floors_are_made_of() -> None:
    """A difference of five percent is allowed, since a device's clock changes."""
    clock = CudaClock(torch.device("cuda"))
    rates = clock.rates()
    source = torch.randn(1 << 29, device="cuda")
    again = {s.name: s.num_bytes / clock.seconds(s.run) for s in streams(source, torch.empty_like(source))}
    assert rates.measured_by in again
    assert rates.bytes_per_s >= 0.95 * max(again.values())
