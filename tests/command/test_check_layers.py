"""tools/check_layers.py: what it must complain about, and what it must accept."""

from check_layers import ROOT, complaints, looks_upwards


def upwards(file: str, include: str) -> bool:
    return looks_upwards(ROOT / "src" / file, include)


def test_a_sub_folder_may_include_only_those_below_it():
    assert upwards("codec/format/rans.h", "codec/encode/encoder.h")
    assert upwards("codec/kernels/kernels.h", "codec/digest/digest.h")
    assert not upwards("codec/decode/decoder.h", "codec/format/rans.h")
    assert not upwards("store/backends/s3_store.cc", "store/http/http.h")


def test_files_outside_the_sub_folders_are_exempt():
    assert not upwards("store/wrappers/retry_store.h", "store/store.h")
    assert not upwards("store/open.cc", "store/wrappers/retry_store.h")


def test_the_tree_obeys():
    assert complaints() == []
