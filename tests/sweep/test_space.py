"""Search spaces: the papers' ranges, files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engram.attacks.registry import make_attack, parse_setting
from engram.core.errors import ConfigError
from engram.sweep.space import PRESETS, Choice, Range, Space, find_space, read_space
from tests.sweep import small


def test_the_presets_match_the_papers() -> None:
    """Haim et al. 2022, appendix B.2; Buzaglo et al. 2023, appendix B."""
    first, second = PRESETS["haim2022"].search, PRESETS["buzaglo2023"].search
    assert first["lr_images"] == second["lr_images"] == Range(low=1e-5, high=1, log=True)
    assert first["relu_slope"] == second["relu_slope"] == Range(low=10, high=500)
    assert first["image_std"] == Range(low=1e-6, high=1, log=True)
    assert second["image_std"] == Range(low=1e-6, high=0.1, log=True)
    assert first["dual_floor"] == Range(low=1e-4, high=1, log=True)
    assert second["dual_floor"] == Range(low=0.01, high=0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_the_ends_of_every_preset_are_valid_settings(name: str) -> None:
    space = PRESETS[name]
    for end in ("low", "high"):
        values = {
            key: getattr(one, end) if isinstance(one, Range) else one.choices[-1]
            for key, one in space.search.items()
        }
        scheme = make_attack(small.view(), space.recipe, {**space.fixed, **values, "seed": 3})
        assert scheme.settings.seed == 3


TEXT = """
recipe = "haim2022"
[fixed]
steps = 300
[search]
lr_images = { low = 1e-4, high = 0.1, log = true }
candidates = { choices = [20, 40] }
"""


def test_a_space_can_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(TEXT)
    assert find_space(str(tmp_path / "space.toml")) == Space(
        recipe="haim2022",
        search={"lr_images": Range(low=1e-4, high=0.1, log=True), "candidates": Choice(choices=(20, 40))},
        fixed={"steps": 300},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe = ", "not a readable TOML file"),
        ("flavour = 1", "flavour: Unexpected keyword argument"),
        ('recipe = "magic"', "recipe must be one of engine, haim2022, buzaglo2023"),
        ("[search]\nspeed = { low = 1, high = 2 }", "space can set .*, got 'speed'"),
        ("[fixed]\nseed = 1", "set the sweep's seed with --seed"),
        ("[fixed]\nsteps = 0", "steps must be positive"),
        ("[search]\nlr_images = { low = 1, high = 0.1 }", "low must be below high"),
        ("[search]\nlr_images = { low = 0, high = 0.1, log = true }", "must be positive for a range with log"),
        ("[search]\nlr_images = { low = 0, high = 0.1, lgo = true }", "Unexpected keyword"),
        (
            "[fixed]\nlr_images = 1\n[search]\nlr_images = { low = 0.01, high = 0.1 }",
            "must not both search and fix",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_fault(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_space(path)


def test_the_file_in_the_documentation_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    (tmp_path / "space.toml").write_text(text.partition("```toml\n")[2].partition("```")[0])
    assert read_space(tmp_path / "space.toml").search.keys() == {"lr_images", "image_std", "dtype"}


def test_fixing_a_setting_removes_it_from_the_search() -> None:
    space = PRESETS["haim2022"].fixing({"lr_images": 0.1})
    assert "lr_images" not in space.search
    assert space.fixed == {"lr_images": 0.1}


@pytest.mark.parametrize("text", ["many", "1.5"])
def test_a_setting_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--set steps={text} can't be read"):
        parse_setting("haim2022", f"steps={text}")


def test_an_unknown_space_is_refused() -> None:
    with pytest.raises(ConfigError, match="--space must be one of haim2022, buzaglo2023, engine or a TOML file"):
        find_space("haim2021")
