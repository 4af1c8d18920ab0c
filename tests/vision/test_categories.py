"""The names of classes."""

import pytest
from chainsight import Categories


def test_names_are_found_and_counted():
    pets = Categories.plain(["cat", "dog"], [17, 18])
    assert (len(pets), pets.index("dog"), repr(pets)) == (2, 1, "Categories(2: cat, dog)")
    with pytest.raises(ValueError, match="there is no class 'dogs': did you mean dog"):
        pets.index("dogs")


@pytest.mark.parametrize("make", [Categories.plain, Categories.with_background])
def test_one_text_is_no_list_of_names(make):
    with pytest.raises(TypeError, match=r"expected a list of category names, got the text 'boat': pass \['boat'\]"):
        make("boat")
