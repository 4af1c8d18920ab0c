import copy
import json

import pytest
from chainsight.evaluations.on_coco import evaluate_detector, match_categories


def test_ten_real_photos_score_as_published(ten_photos, tmp_path):
    truth, images, model = ten_photos
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    evaluation = evaluate_detector(model, tmp_path / "truth.json", images, progress=False)
    figures = evaluation.metrics.to_dict()
    assert [round(figures[name], 4) for name in ("AP", "AP50", "AP75")] == [0.3735, 0.5708, 0.3375]
    assert evaluation.images == 10
    assert not evaluation.failures
    assert not evaluation.notes
    evaluation.save(tmp_path / "e.json")
    data = json.loads((tmp_path / "e.json").read_text())
    names = "AP AP50 AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl"
    assert list(data["metrics"]) == names.split()
    assert data["metrics"]["AP"] == figures["AP"]
    assert data["model"] == "nanodet_replayed"
    assert data["settings"]["max_detections"] == [1, 10, 100]
    assert len(data["settings"]["data_sha256"]) == 64
    assert data["images_per_second"] > 0


def test_settings_reach_the_model_and_the_metric(ten_photos):
    truth, images, model = ten_photos
    everything = evaluate_detector(model, truth, images, progress=False)
    sure = evaluate_detector(model, truth, images, score_threshold=0.3, max_detections=20, limit=4, progress=False)
    assert sure.images == 4
    assert sure.metrics.max_detections == (1, 10, 20)
    assert 0 < len(sure.predictions) < len(everything.predictions)
    assert min(entry["score"] for entry in sure.predictions) >= 0.3
    assert sure.image_ids == sorted(image["id"] for image in truth["images"])[:4]


def test_other_ids_and_order_of_the_categories_change_nothing(ten_photos):
    truth, images, model = ten_photos
    expected = evaluate_detector(model, truth, images, progress=False).metrics.to_dict()
    other = copy.deepcopy(truth)
    other["categories"].reverse()
    for entry in other["categories"]:
        entry["id"] = 1000 - entry["id"]
        entry["name"] = entry["name"].title()
    for entry in other["annotations"]:
        entry["category_id"] = 1000 - entry["category_id"]
    assert evaluate_detector(model, other, images, progress=False).metrics.to_dict() == pytest.approx(
        expected, abs=1e-12
    )


def test_a_data_set_of_some_of_the_classes(ten_photos):
    truth, images, model = ten_photos
    people = copy.deepcopy(truth)
    people["categories"] = [c for c in truth["categories"] if c["name"] == "person"] + [{"id": 200, "name": "unicorn"}]
    people["annotations"] = [a for a in truth["annotations"] if a["category_id"] == 1]
    evaluation = evaluate_detector(model, people, images, progress=False)
    every = evaluate_detector(model, truth, images, progress=False)
    assert evaluation.metrics.per_category["person"] == pytest.approx(every.metrics.per_category["person"])
    assert evaluation.notes[0].startswith("not scored: 79 categories of the model")
    assert evaluation.notes[1] == "never found: 1 categories of annotations that the model lacks (unicorn)"
    with pytest.raises(ValueError, match=r"no category of the model is one of annotations: .*; the data unicorn"):
        evaluate_detector(
            model, {"images": truth["images"], "annotations": [], "categories": [{"id": 1, "name": "unicorn"}]}, images
        )


def test_bad_images_are_reported_and_left_out(ten_photos, caplog):
    truth, images, model = ten_photos
    bad = copy.deepcopy(truth)
    bad["images"][0]["file_name"] = "absent.jpg"
    bad["images"][3]["height"], bad["images"][3]["width"] = 7, 9
    evaluation = evaluate_detector(model, bad, images, progress=False)
    assert evaluation.images == 8
    first, fourth = bad["images"][0]["id"], bad["images"][3]["id"]
    assert set(evaluation.failures) == {first, fourth}
    assert "absent.jpg: listed in annotations, but there is no such file" in evaluation.failures[first]
    assert "annotated as (height, width) (7, 9), but the image is" in evaluation.failures[fourth]
    assert "2 images could not be scored and are in no figure" in str(evaluation)
    rest = copy.deepcopy(truth)
    rest["images"] = [image for image in rest["images"] if image["id"] not in (first, fourth)]
    rest["annotations"] = [entry for entry in rest["annotations"] if entry["image_id"] not in (first, fourth)]
    expected = evaluate_detector(model, rest, images, progress=False).metrics.to_dict()
    assert evaluation.metrics.to_dict() == expected


def test_resuming_gives_the_same_figures(ten_photos, tmp_path):
    truth, images, model = ten_photos
    expected = evaluate_detector(model, truth, images, progress=False)
    file = tmp_path / "run.jsonl"
    evaluate_detector(model, truth, images, resume=file, progress=False)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:5]) + lines[5][:20])
    model.asked.clear()
    again = evaluate_detector(model, truth, images, resume=file, progress=False)
    assert len(model.asked) == 6
    assert again.metrics.to_dict() == expected.metrics.to_dict()
    with pytest.raises(ValueError, match=r"other settings .*score_threshold: None there, 0\.5 now"):
        evaluate_detector(model, truth, images, score_threshold=0.5, resume=file)


def test_bad_arguments_are_named(ten_photos, tmp_path):
    truth, images, model = ten_photos
    with pytest.raises(ValueError, match="images: there is no folder"):
        evaluate_detector(model, truth, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="annotations: missing key 'annotations'"):
        evaluate_detector(model, {"images": [], "categories": []}, images)
    with pytest.raises(ValueError, match=r"there is no file .*none\.json"):
        evaluate_detector(model, tmp_path / "none.json", images)
    with pytest.raises(ValueError, match="annotations: there are no images to evaluate"):
        evaluate_detector(model, {"images": [], "annotations": [], "categories": truth["categories"]}, images)
    with pytest.raises(ValueError, match=r"all 10 images failed; the first: .*139\.jpg"):
        evaluate_detector(model, truth, tmp_path, progress=False)


def test_categories_match_by_name():
    assert match_categories(["a", "b"], {"b": 1, "a": 2}, "x") == ({0: 2, 1: 1}, [])


@pytest.mark.parametrize(
    ("key", "field", "value", "message"),
    [
        ("images", "file_name", None, r"images\[0\]: expected a text as 'file_name', got None"),
        ("images", "id", [1], r"images\[0\]: expected integers \(or texts\) as 'id' throughout, got \[1\]"),
        ("images", "id", "x", r"images\[0\]: expected integers \(or texts\) as 'id' throughout, got 'x'"),
        ("images", "id", 1.5, r"images\[0\]: expected integers .* got 1\.5"),
        ("annotations", "image_id", [1], r"annotations\[0\]: image_id"),
        ("annotations", "bbox", None, r"annotations\[0\]: expected 'bbox' to hold 4 numbers, got None"),
        ("annotations", "bbox", [1, 2, -3, 4], r"annotation \d+ of image \d+: expected a box"),
        ("annotations", "area", "x", r"annotations\[0\]: expected a number as 'area', got 'x'"),
        ("annotations", "iscrowd", "no", r"annotations\[0\]: expected 0 or 1 as 'iscrowd', got 'no'"),
        ("categories", "name", None, r"categories\[0\]: expected a text as 'name', got None"),
        ("categories", "id", None, r"categories\[0\]: expected integers .* got None"),
    ],
)
def test_mistakes_in_annotations_are_found_before_the_first_image(ten_photos, key, field, value, message):
    truth, images, model = ten_photos
    bad = copy.deepcopy(truth)
    bad[key][0][field] = value
    with pytest.raises(ValueError, match=message):
        evaluate_detector(model, bad, images, progress=False)
    assert not model.asked


@pytest.mark.parametrize(
    ("key", "field"), [("images", "file_name"), ("annotations", "bbox"), ("annotations", "image_id"), ("images", "id")]
)
def test_missing_keys_are_found_before_the_first_image(ten_photos, tmp_path, key, field):
    truth, images, model = ten_photos
    bad = copy.deepcopy(truth)
    del bad[key][0][field]
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    with pytest.raises(ValueError, match=rf"bad\.json: {key}\[0\]: .*'{field}'"):
        evaluate_detector(model, tmp_path / "bad.json", images, progress=False)
    assert not model.asked


@pytest.mark.parametrize(
    "text", ["", "hello", "[" * 100_000, "[]", '{"images": 3, "annotations": [], "categories": []}']
)
def test_files_that_are_no_annotations(ten_photos, tmp_path, text):
    _, images, model = ten_photos
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json: "):
        evaluate_detector(model, tmp_path / "bad.json", images)
    with pytest.raises(ValueError, match="folder"):
        evaluate_detector(model, tmp_path, images)


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": -1}, {"score_threshold": 2}, {"max_detections": 0}])
def test_options_without_sense(ten_photos, options):
    truth, images, model = ten_photos
    with pytest.raises(ValueError, match=r"got (0|-1|2)"):
        evaluate_detector(model, truth, images, **options)
    assert not model.asked


def test_photos_without_objects_have_no_figures(ten_photos):
    truth, images, model = ten_photos
    evaluation = evaluate_detector(model, truth | {"annotations": []}, images, progress=False)
    assert evaluation.metrics.to_dict()["AP"] == -1
    assert evaluation.images == 10


def test_an_area_of_null_is_that_of_the_box(ten_photos):
    truth, images, model = ten_photos
    with_null, without = copy.deepcopy(truth), copy.deepcopy(truth)
    for a, b in zip(with_null["annotations"], without["annotations"]):
        a["area"] = None
        del b["area"]
    figures = [evaluate_detector(model, t, images, progress=False).metrics.to_dict() for t in (with_null, without)]
    assert figures[0] == figures[1]


def test_a_category_of_exactly_the_name_comes_first():
    assert match_categories(["cat"], {"Cat": 1, "cat": 2}, "pets")[0] == {0: 2}
    assert match_categories(["cat"], {"cat": 2, "CAT": 1}, "pets")[0] == {0: 2}
    assert match_categories(["cat"], {"Cat": 5, "CAT": 1}, "pets")[0] == {0: 5}
    assert match_categories(["cat"], {"Cat": 0}, "pets")[0] == {0: 0}
