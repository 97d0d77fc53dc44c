"""Files whose images are large though they are small themselves, and how much memory decoding one takes."""

import struct
import subprocess
import sys
import zlib

from PIL import Image

CODE = "import sys; from selex.data.decode import decode; print(decode(sys.argv[1], 256).mean())"
# not `ru_maxrss`, which counts the process that started this one
CODE += "; print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024)"


def large_png(path, side, colour, depth, channels):
    """A PNG of zeros, row by row: `colour` is the number of its kind of pixels."""
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))  # noqa: E731
    packer, row = zlib.compressobj(1), bytes(1 + side * channels * depth // 8)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(6)) + chunk(b"tRNS", b"\0") if colour == 3 else b""
    parts = chunk(b"IHDR", header) + palette + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


def large_tiff(path, side):
    """A TIFF of floats, all zero: on most disks its file takes no room."""
    tags = {256: side, 257: side, 258: 32, 259: 1, 262: 1, 273: 200, 277: 1, 278: side, 279: 4 * side * side, 339: 3}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    with path.open("wb") as file:
        file.write(b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4))
        file.truncate(200 + 4 * side * side)


def large_webp(path, side):
    Image.new("RGB", (side, side)).save(path, lossless=True, quality=0, method=0)


def scans_jpeg(path, side, scans):
    """A sequential JPEG, all grey, whose three components are in these scans: `[(1, 2, 3)]`, `[(1,), (2,), (3,)]`."""
    segment = lambda marker, data: bytes([255, marker]) + struct.pack(">H", len(data) + 2) + data  # noqa: E731
    one_code = b"\1" + bytes(15) + b"\0"  # a single 0 bit: no difference to the block before; end of the block
    parts = [b"\xff\xd8", segment(0xDB, b"\0" + b"\1" * 64), segment(0xC4, b"\0" + one_code)]
    parts += [segment(0xC4, b"\x10" + one_code)]
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    parts += [segment(0xC0, struct.pack(">BHHB", 8, side, side, 3) + components)]
    for scan in scans:
        bits = 2 * len(scan) * (-(-side // 8)) ** 2
        chosen = b"".join(bytes([number, 0]) for number in scan)
        parts += [segment(0xDA, bytes([len(scan)]) + chosen + bytes([0, 63, 0])), bytes(bits // 8)]
        parts += [bytes([255 >> bits % 8])] if bits % 8 else []
    path.write_bytes(b"".join([*parts, b"\xff\xd9"]))


def large_jpeg(path, side, subsampling):
    Image.new("RGB", (side, side)).save(path, progressive=True, subsampling=subsampling)


def decoded(path):
    """What decoding an image says at the end: its mean and the process's peak in MB, or why it cannot be read."""
    done = subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.splitlines()[-1], 0.0
    mean, peak = done.stdout.split()
    return float(mean), float(peak)
