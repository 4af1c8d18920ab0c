import http.server
import io
import re
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from chainsight.vision import image as module
from chainsight.vision.image import ImageError, iter_sources, read_image, write_image
from PIL import Image, ImageOps


def encoded(picture, form, **options):
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


@pytest.fixture
def noise():
    return np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)


# --- files ---------------------------------------------------------------------------------------------------------


def test_real_photos_equal_pillow(shared):
    photos = sorted((shared / "data/coco128/images/val").glob("*.jpg"))[:12] + [
        shared / "data/coco128/images/val/000000007888.jpg"
    ]
    modes = set()
    for photo in photos:
        with Image.open(photo) as picture:
            modes.add(picture.mode)
            expected = np.array(picture.convert("RGB"))
        for source in (photo, str(photo), photo.read_bytes(), Image.open(photo)):
            found = read_image(source)
            assert found.dtype == np.uint8
            assert found.flags.c_contiguous
            np.testing.assert_array_equal(found, expected)
            if isinstance(source, Image.Image):
                source.close()
    assert modes == {"RGB", "L"}


@pytest.mark.parametrize("orientation", range(10))
def test_exif_orientation(noise, orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.jpg"
    Image.fromarray(noise).save(path, exif=exif)
    with Image.open(path) as picture:
        expected = np.array(ImageOps.exif_transpose(picture))
        np.testing.assert_array_equal(read_image(picture), expected)
    np.testing.assert_array_equal(read_image(path), expected)
    assert expected.shape == ((31, 20, 3) if 5 <= orientation <= 8 else (20, 31, 3))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # Pillow's own, and true
def test_a_damaged_exif_block_does_not_spoil_the_photo(noise):
    good = encoded(Image.fromarray(noise), "JPEG", quality=95)
    expected = read_image(good)
    for block in (b"Exif\0\0", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01", b"Exif\0\0garbage garbage"):
        segment = b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block
        np.testing.assert_array_equal(read_image(good[:2] + segment + good[2:]), expected)


def test_sixteen_bit_png_is_scaled_by_257(tmp_path):
    values = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
    path = tmp_path / "deep.png"
    Image.fromarray(values).save(path)
    assert read_image(path).tolist() == [[[v] * 3 for v in (0, 0, 1, 1, 128, 255)]]


def test_sixteen_bit_tiff_of_both_byte_orders():
    for mode, dtype in (("I;16", "<u2"), ("I;16B", ">u2")):
        picture = Image.frombytes(mode, (2, 1), np.array([257 * 7, 65535], dtype).tobytes())
        assert read_image(encoded(picture, "TIFF")).tolist() == [[[7] * 3, [255] * 3]]


def test_thirty_two_bit_and_float_pictures_are_refused_with_their_range():
    deep = Image.fromarray(np.array([[0, 70000]], np.int32))
    with pytest.raises(ImageError, match="32-bit integers from 0 to 70000"):
        read_image(encoded(deep, "TIFF"))
    with pytest.raises(ImageError, match="mode F"):
        read_image(encoded(Image.fromarray(np.array([[0.5]], np.float32)), "TIFF"))


def test_cmyk_jpeg(noise):
    colour = Image.fromarray(np.full((16, 16, 3), (200, 40, 90), np.uint8)).convert("CMYK")
    data = encoded(colour, "JPEG", quality=95)
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.mode == "CMYK"
        assert "adobe" in picture.info
    assert np.abs(read_image(data).astype(int) - (200, 40, 90)).max() <= 4
    assert read_image(encoded(Image.new("CMYK", (1, 1), (0, 255, 255, 51)), "TIFF")).tolist() == [[[204, 0, 0]]]


def test_one_bit_and_grayscale():
    assert read_image(encoded(Image.fromarray(np.array([[True, False]])), "PNG")).tolist() == [[[255] * 3, [0] * 3]]
    assert read_image(encoded(Image.fromarray(np.array([[7, 250]], np.uint8)), "PNG")).tolist() == [
        [[7] * 3, [250] * 3]
    ]


def test_transparency_is_laid_over_white():
    half = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 128]]], np.uint8)
    expected = [[[255, 0, 0], [255, 255, 255], [127, 127, 127]]]
    assert read_image(encoded(Image.fromarray(half), "PNG")).tolist() == expected
    assert read_image(Image.fromarray(half)).tolist() == expected
    assert read_image(half).tolist() == expected
    assert read_image(half[..., [2, 1, 0, 3]], channel_order="BGR").tolist() == expected
    grey = np.array([[[0, 0], [0, 255]]], np.uint8)
    assert read_image(encoded(Image.fromarray(grey), "PNG")).tolist() == [[[255] * 3, [0] * 3]]


def test_palette_with_and_without_transparency():
    palette = Image.new("P", (3, 1))
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.putdata([0, 1, 2])
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    assert read_image(encoded(palette, "PNG")).tolist() == [colours]
    assert read_image(encoded(palette, "PNG", transparency=1)).tolist() == [[colours[0], [255] * 3, colours[2]]]
    by_entry = encoded(palette, "PNG", transparency=bytes([255, 255, 0]))
    assert read_image(by_entry).tolist() == [[colours[0], colours[1], [255] * 3]]
    key = encoded(Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)), "PNG", transparency=(1, 2, 3))
    assert read_image(key).tolist() == [[[255] * 3, [4, 5, 6]]]


def test_first_frame_of_gif_and_tiff():
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue")]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    tiff = encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    for data in (gif, tiff):
        found = read_image(data)
        assert found.shape == (3, 4, 3)
        assert (found == (255, 0, 0)).all()
    with Image.open(io.BytesIO(gif)) as picture:
        picture.seek(1)
        assert (read_image(picture) == (0, 0, 255)).all()


def test_one_pixel_and_panorama(tmp_path):
    assert read_image(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG")).tolist() == [[[1, 2, 3]]]
    path = tmp_path / "panorama.jpg"
    Image.linear_gradient("L").resize((12_000, 1_500)).save(path)
    assert read_image(path).shape == (1_500, 12_000, 3)


def test_size_is_judged_by_our_limit_alone(monkeypatch):
    data = encoded(Image.new("L", (100, 100)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow would warn or refuse from here on.
    assert read_image(data).shape == (100, 100, 3)
    assert Image.MAX_IMAGE_PIXELS == 10
    with pytest.raises(ImageError, match="100 x 100 pixels, expected at most 9999"):
        read_image(data, max_pixels=9999)


def test_a_decompression_bomb_is_refused_before_it_is_decoded():
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 1, 0, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10))) + chunk(b"IEND", b"")
    )
    with pytest.raises(ImageError, match="100000 x 100000 pixels"):
        read_image(bomb)


def test_bad_files_name_the_file_and_the_reason(noise, tmp_path):
    jpeg = encoded(Image.fromarray(noise).resize((640, 480)), "JPEG")
    png = encoded(Image.fromarray(noise), "PNG")
    cases = {
        "text.jpg": (b"just some words", "no image that Pillow reads; the file begins with b'just some words'"),
        "page.jpg": (b"\n<!DOCTYPE html><html></html>", "a web page"),
        "empty.jpg": (b"", r"the file is empty \(0 bytes\)"),
        "half.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "header.jpg": (jpeg[:100], "(truncated|broken|no image)"),
        "half.png": (png[: len(png) // 2], "truncated"),
        "flipped.png": (png[:41] + bytes([png[41] ^ 255]) + png[42:], "broken or truncated"),
        "figure.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "EPS"),
    }
    for name, (data, reason) in cases.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ImageError, match=rf"^{re.escape(str(path))}: .*{reason}"):
            read_image(path)
        with pytest.raises(ImageError, match=reason):
            read_image(data)


def test_missing_file_folder_and_locked_file(tmp_path, monkeypatch):
    with pytest.raises(ImageError, match=r"nowhere\.jpg: no such file"):
        read_image(tmp_path / "nowhere.jpg")
    with pytest.raises(ImageError, match="expected an image file, got a folder"):
        read_image(tmp_path)
    with pytest.raises(ImageError, match="no such file"):
        read_image("")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about the damage
@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_give_a_picture_or_an_image_error(noise, seed):
    rng = np.random.default_rng(seed)
    survived = 0
    for form in ("JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP", "PPM"):
        good = np.frombuffer(encoded(Image.fromarray(noise), form), np.uint8)
        for _ in range(10):
            bad = good.copy()
            bad[rng.integers(0, len(bad), 4)] = rng.integers(0, 256, 4)
            try:
                found = read_image(bad.tobytes(), max_pixels=10_000)
            except ImageError:
                continue
            survived += 1
            assert found.dtype == np.uint8
            assert found.shape[2] == 3
    assert survived > 0


# --- arrays --------------------------------------------------------------------------------------------------------


def test_arrays(noise):
    assert read_image(noise) is noise
    np.testing.assert_array_equal(read_image(noise, channel_order="BGR"), noise[..., ::-1])
    np.testing.assert_array_equal(read_image(noise[..., 0]), np.repeat(noise[..., :1], 3, 2))
    np.testing.assert_array_equal(read_image(noise[..., :1]), np.repeat(noise[..., :1], 3, 2))
    strided = read_image(noise[::2, ::-1])
    assert strided.flags.c_contiguous
    np.testing.assert_array_equal(strided, noise[::2, ::-1])


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros((3, 20, 30), np.uint8), ValueError, r"got \(3, 20, 30\); .* pass array.transpose\(1, 2, 0\)"),
        (np.zeros((2, 20, 30, 3), np.uint8), ValueError, "batch of shape .* pass a list"),
        (np.zeros(7, np.uint8), ValueError, r"got \(7,\)"),
        (np.zeros((20, 30, 2), np.uint8), ValueError, r"got \(20, 30, 2\)"),
        (np.zeros((0, 30, 3), np.uint8), ValueError, "at least one pixel"),
        (np.full((2, 2, 3), 0.5), TypeError, r"float64 from 0.5 to 0.5; convert with \(array \* 255\)"),
        (np.full((2, 2, 3), 200.0, np.float32), TypeError, r"float32 from 200 .*convert with array.round"),
        (np.full((2, 2, 3), -1.5), TypeError, "undo the normalisation"),
        (np.array([[0.0, np.nan]]), ValueError, "1 values that are NaN or infinite"),
        (np.array([[0.0, np.inf]]), ValueError, "NaN or infinite"),
        (np.full((2, 2), 60000, np.uint16), TypeError, r"convert with \(array / 257\)"),
        (np.full((2, 2), 300), TypeError, "int64 from 300 to 300; scale"),
        (np.full((2, 2), 30), TypeError, r"convert with array.round\(\)"),
        (np.zeros((2, 2), bool), TypeError, r"bool; convert with array.astype\(np.uint8\) \* 255"),
        (np.zeros((2, 2), "U3"), TypeError, "got <U3"),
    ],
)
def test_wrong_arrays_say_what_to_do(array, error, message):
    with pytest.raises(error, match=message):
        read_image(array)


def test_wrong_sources():
    with pytest.raises(TypeError, match=r"expected one image as a path, .* got builtins.list"):
        read_image(["a.jpg"])
    with pytest.raises(TypeError, match=r"got builtins.NoneType"):
        read_image(None)
    with pytest.raises(ValueError, match='"RGB" or "BGR", got \'rgb\''):
        read_image(np.zeros((2, 2, 3), np.uint8), channel_order="rgb")


# --- URLs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(noise):
    picture = encoded(Image.fromarray(noise), "PNG")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/cut.png":
                self.send_response(200)
                self.send_header("Content-Length", str(len(picture)))
                self.end_headers()
                self.wfile.write(picture[:100])
                return
            if self.path == "/moved.png":
                self.send_response(302)
                self.send_header("Location", "/good.png?size=large")
                self.end_headers()
                return
            body = {"/page.png": b"<html>Sign in</html>", "/nothing.png": b""}.get(self.path, picture)
            if self.path == "/missing.png":
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_urls(server, noise, monkeypatch):
    np.testing.assert_array_equal(read_image(f"{server}/good.png?size=large"), noise)
    np.testing.assert_array_equal(read_image(f"{server}/moved.png"), noise)
    for name, reason in [
        ("missing.png", "expected an image, got HTTP 404"),
        ("page.png", "a web page"),
        ("nothing.png", "empty"),
        ("cut.png", "download failed"),
    ]:
        with pytest.raises(ImageError, match=f"^{server}/{name}: .*{reason}"):
            read_image(f"{server}/{name}")
    monkeypatch.setattr(module, "MAX_DOWNLOAD", 1000)
    with pytest.raises(ImageError, match="the server sends more"):
        read_image(f"{server}/good.png")


def test_url_without_a_server():
    with pytest.raises(ImageError, match=r"^http://127\.0\.0\.1:9/a\.jpg: download failed"):
        read_image("http://127.0.0.1:9/a.jpg")


# --- writing and listing -------------------------------------------------------------------------------------------


def test_write_image_is_all_or_nothing(noise, tmp_path, monkeypatch):
    path = tmp_path / "out.png"
    write_image(path, noise)
    np.testing.assert_array_equal(read_image(path), noise)
    before = path.read_bytes()

    def fail(self, file, *_, **__):
        Path(file).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        write_image(path, noise[::2])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.png"]


def test_write_image_errors(noise, tmp_path):
    with pytest.raises(ValueError, match=r"expected an image extension such as \.png or \.jpg, got '\.xyz'"):
        write_image(tmp_path / "out.xyz", noise)
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        write_image(tmp_path / "no" / "out.png", noise)


def test_iter_sources(tmp_path):
    for name in ("img10.jpg", "img2.JPG", "img1.png", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep[1].jpg").touch()
    (tmp_path / "none").mkdir()

    def names(*sources):
        return [Path(source).name if isinstance(source, str) else source for source in iter_sources(sources)]

    assert names(tmp_path) == ["img1.png", "img2.JPG", "img10.jpg"]
    assert names(str(tmp_path / "img*")) == ["img1.png", "img2.JPG", "img10.jpg"]
    assert names(str(tmp_path / "**" / "*.jpg")) == ["img10.jpg", "deep[1].jpg"]
    assert names(tmp_path / "sub" / "deep[1].jpg") == ["deep[1].jpg"]
    assert names(tmp_path / "img10.jpg", tmp_path) == ["img10.jpg", "img1.png", "img2.JPG"]
    assert names("http://a.org/*.jpg", b"bytes") == ["*.jpg", b"bytes"]
    assert names(tmp_path / "notes.txt", tmp_path / "gone.jpg") == ["notes.txt", "gone.jpg"]
    for nothing in (tmp_path / "none", tmp_path / "gone.jpg", str(tmp_path / "*.bmp")):
        with pytest.raises(ImageError, match=f"no image found in {re.escape(str(nothing))}"):
            iter_sources(nothing)
    with pytest.raises(ImageError, match="no image found in an empty list"):
        iter_sources([])
