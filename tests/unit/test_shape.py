import pickle
from collections.abc import Mapping

import numpy as np
import pytest

from roost.dimensions import RANKS_MAX
from roost.point import Point
from roost.shape import Shape
from roost.value_mesh import ValueMesh

GRID = {"hosts": 2, "gpus": 4}


class TestPoint:
    def test_is_a_mapping_of_coordinates(self):
        point = Point(GRID, 6)
        assert isinstance(point, Mapping)
        assert point["gpus"] == 2
        assert dict(point) == {"hosts": 1, "gpus": 2}
        assert point == {"hosts": 1, "gpus": 2}
        assert (point.rank, point.size, dict(point.sizes)) == (6, 8, GRID)

    def test_text(self):
        assert str(Point(GRID, 6)) == "hosts=1,gpus=2"
        assert str(Point({}, 0)) == ""
        assert repr(Point(GRID, 6)) == "Point({'hosts': 2, 'gpus': 4}, rank=6)"

    def test_equal_only_at_the_same_place_of_the_same_grid(self):
        assert Point(GRID, 1) == Point(GRID, 1)
        assert hash(Point(GRID, 1)) == hash(Point(GRID, 1))
        assert Point(GRID, 1) != Point(GRID, 2)
        assert Point({"gpus": 4}, 1) != Point({"gpus": 8}, 1)

    def test_pickles_small(self):
        point = Point(GRID, 6)
        packed = pickle.dumps(point, protocol=5)
        assert pickle.loads(packed) == point
        assert len(packed) < 80

    def test_is_frozen(self):
        with pytest.raises(AttributeError, match="frozen"):
            Point(GRID, 1).rank = 2
        with pytest.raises(AttributeError, match="frozen"):
            del Point(GRID, 1).rank

    def test_unknown_dimension_names_the_known_ones(self):
        with pytest.raises(KeyError, match="no dimension 'gpu'; there is hosts, gpus"):
            Point(GRID, 1)["gpu"]

    @pytest.mark.parametrize("rank", [-1, 8])
    def test_rank_must_be_in_the_grid(self, rank):
        with pytest.raises(ValueError, match=f"rank {rank} is not in .*ranks 0 to 7"):
            Point(GRID, rank)


class TestSizes:
    @pytest.mark.parametrize("size", [0, -1])
    def test_size_must_be_positive(self, size):
        with pytest.raises(ValueError, match=f"'gpus' has size {size}.*leave the dimension out"):
            Shape({"gpus": size})

    @pytest.mark.parametrize("size", [1.0, "2", None, True])
    def test_size_must_be_a_whole_number(self, size):
        with pytest.raises(TypeError, match="must be a whole number"):
            Shape({"gpus": size})

    def test_numpy_integers_are_whole_numbers(self):
        assert len(Shape({"gpus": np.int64(3)})) == 3

    @pytest.mark.parametrize("name", ["", "a b", 3])
    def test_name_must_be_a_keyword(self, name):
        with pytest.raises(ValueError, match="cannot name a dimension"):
            Shape({name: 1})

    def test_ranks_are_bounded(self):
        with pytest.raises(ValueError, match="passes the limit"):
            Shape({"a": RANKS_MAX, "b": 2})


class TestShape:
    def test_without_dimensions_is_one_rank(self):
        shape = Shape()
        assert len(shape) == 1
        assert list(shape.ranks()) == [0]
        assert shape.runs() == [(0, 1, 1)]
        assert shape.point(0) == {}

    def test_ranks_of_a_whole_and_of_a_column_are_ranges(self):
        shape = Shape(GRID)
        assert shape.ranks() == range(8)
        assert shape.slice(gpus=1).ranks() == range(1, 9, 4)
        assert shape.slice(gpus=slice(1, 2)).ranks() == range(1, 9, 4)
        assert shape.runs() == [(0, 8, 1)]
        assert shape.slice(gpus=slice(1, 3)).runs() == [(1, 2, 1), (5, 2, 1)]

    def test_number_drops_and_slice_keeps(self):
        shape = Shape(GRID)
        assert dict(shape.slice(gpus=0).sizes) == {"hosts": 2}
        assert dict(shape.slice(gpus=slice(0, 1)).sizes) == {"hosts": 2, "gpus": 1}
        assert list(shape.slice(hosts=-1, gpus=slice(None, None, 2)).ranks()) == [4, 6]

    def test_at_gives_one_rank_without_dimensions(self):
        column = Shape(GRID).slice(gpus=1)
        assert [list(column.at(rank).ranks()) for rank in range(2)] == [[1], [5]]
        assert list(column.at(-1).ranks()) == [5]
        assert dict(column.at(0).sizes) == {}

    def test_at_of_a_flattened_slice(self):
        flat = Shape(GRID).slice(gpus=slice(1, 3)).flatten("all")
        assert [next(iter(flat.at(rank).ranks())) for rank in range(4)] == [1, 2, 5, 6]
        assert flat.runs() == [(1, 2, 1), (5, 2, 1)]

    def test_points_are_in_the_slice_itself(self):
        column = Shape(GRID).slice(gpus=slice(2, 4))
        assert [str(point) for point in column.points()] == [
            "hosts=0,gpus=0",
            "hosts=0,gpus=1",
            "hosts=1,gpus=0",
            "hosts=1,gpus=1",
        ]
        assert column.point(3).rank == 3

    def test_split_derives_the_size_left_out(self):
        split = Shape(GRID).split(gpus=("nodes", "local"), local=2)
        assert dict(split.sizes) == {"hosts": 2, "nodes": 2, "local": 2}
        assert list(split.slice(nodes=1).ranks()) == [2, 3, 6, 7]

    def test_split_checks_sizes_all_given(self):
        assert dict(Shape(GRID).split(gpus=("a", "b"), a=1, b=4).sizes) == {"hosts": 2, "a": 1, "b": 4}
        with pytest.raises(ValueError, match="do not divide"):
            Shape(GRID).split(gpus=("a", "b"), a=2, b=4)

    def test_flatten_and_rename(self):
        shape = Shape(GRID)
        assert shape.flatten("all") == Shape({"all": 8})
        assert dict(shape.slice(hosts=0, gpus=0).flatten("all").sizes) == {"all": 1}
        assert dict(shape.rename(gpus="workers").sizes) == {"hosts": 2, "workers": 4}

    def test_rename_may_swap(self):
        assert dict(Shape(GRID).rename(gpus="hosts", hosts="gpus").sizes) == {"gpus": 2, "hosts": 4}

    def test_extend_is_a_new_whole(self):
        extended = Shape(GRID).slice(gpus=1).extend({"envs": 3})
        assert extended == Shape({"hosts": 2, "envs": 3})

    @pytest.mark.parametrize(
        ("view", "error", "text"),
        [
            (lambda s: s.slice(gpu=0), ValueError, "knows no dimension 'gpu'; the mesh is {'hosts': 2, 'gpus': 4}"),
            (lambda s: s.slice(gpus=4), IndexError, "4 is outside dimension 'gpus', which has 4 places"),
            (lambda s: s.slice(gpus=-5), IndexError, "-5 is outside"),
            (lambda s: s.slice(gpus="0"), TypeError, "must be a whole number, not '0'"),
            (lambda s: s.slice(gpus=slice(4, None)), ValueError, "takes nothing of dimension 'gpus'"),
            (lambda s: s.slice(gpus=slice(None, None, -1)), ValueError, "steps are positive"),
            (lambda s: s.slice(gpus=slice(None, None, 0)), ValueError, "steps are positive"),
            (lambda s: s.split(gpu=("a", "b"), a=1), ValueError, "split\\(\\) knows no dimension 'gpu'"),
            (lambda s: s.split(gpus=("a", "b"), c=1), ValueError, "a size for 'c', which no dimension is split into"),
            (lambda s: s.split(gpus=("a", "b")), ValueError, "give the sizes of all parts but one"),
            (lambda s: s.split(gpus=()), ValueError, "give the sizes of all parts but one"),
            (lambda s: s.split(gpus=("a", "b"), a=3), ValueError, "do not divide dimension 'gpus' of 4"),
            (lambda s: s.split(gpus=("a", "b"), a=0), ValueError, "at least 1"),
            (lambda s: s.split(gpus="ab"), TypeError, "give names"),
            (lambda s: s.split(gpus=("hosts", "b"), b=2), ValueError, "'hosts' is there twice; rename one"),
            (lambda s: s.rename(gpu="a"), ValueError, "rename\\(\\) knows no dimension 'gpu'"),
            (lambda s: s.rename(gpus="hosts"), ValueError, "'hosts' is there twice"),
            (lambda s: s.flatten("a b"), ValueError, "cannot name a dimension"),
            (lambda s: s.extend({"gpus": 2}), ValueError, "'gpus' is there twice"),
            (lambda s: s.at(8), IndexError, "8 is outside .*, which has 8 places"),
            (lambda s: s.point(8), IndexError, "which has 8 ranks"),
            (lambda s: s.base_rank(8), IndexError, "which has 8 ranks"),
        ],
    )
    def test_errors_say_what_was_wrong(self, view, error, text):
        with pytest.raises(error, match=text):
            view(Shape(GRID))

    def test_pickles_and_compares(self):
        for shape in (Shape(GRID), Shape(GRID).slice(gpus=1), Shape(GRID).slice(gpus=slice(1, 3)).flatten("all")):
            again = pickle.loads(pickle.dumps(shape, protocol=5))
            assert again == shape
            assert hash(again) == hash(shape)
            assert list(again.ranks()) == list(shape.ranks())
        assert repr(Shape(GRID)) == "Shape({'hosts': 2, 'gpus': 4})"
        assert repr(Shape(GRID).slice(gpus=1)) == "Shape({'hosts': 2}, offset=1, strides=(4,))"


class TestValueMesh:
    def test_values_in_rank_order(self):
        mesh = ValueMesh(GRID, range(8))
        assert list(mesh) == list(range(8))
        assert list(mesh.values()) == list(range(8))
        assert len(mesh) == 8
        assert mesh[0] == 0
        assert mesh[-1] == 7
        assert dict(mesh.sizes) == GRID
        with pytest.raises(IndexError):
            mesh[8]

    def test_items_give_points(self):
        mesh = ValueMesh(GRID, "abcdefgh")
        assert {str(point): value for point, value in mesh.items()}["hosts=1,gpus=2"] == "g"

    def test_item_by_coordinates(self):
        mesh = ValueMesh(GRID, range(8))
        assert mesh.item(hosts=1, gpus=2) == 6
        assert ValueMesh({}, ["one"]).item() == "one"
        assert ValueMesh({"gpus": 1}, ["one"]).item() == "one"
        with pytest.raises(ValueError, match="needs 'hosts' too"):
            mesh.item(gpus=0)
        with pytest.raises(IndexError, match="9 is outside dimension 'gpus'"):
            mesh.item(hosts=0, gpus=9)

    def test_slice_and_flatten(self):
        mesh = ValueMesh(GRID, range(8))
        assert mesh.slice(gpus=1) == ValueMesh({"hosts": 2}, [1, 5])
        assert mesh.slice(gpus=slice(1, 4, 2)).flatten("all") == ValueMesh({"all": 4}, [1, 3, 5, 7])
        assert [str(point) for point, _ in mesh.slice(gpus=1).items()] == ["hosts=0", "hosts=1"]

    def test_needs_one_value_a_place(self):
        with pytest.raises(ValueError, match=r"2 values do not fill {'gpus': 3}, which has 3 places"):
            ValueMesh({"gpus": 3}, [1, 2])

    def test_compares_pickles_and_prints(self):
        mesh = ValueMesh({"gpus": 2}, [1.5, 2.5])
        assert pickle.loads(pickle.dumps(mesh)) == mesh
        assert mesh != ValueMesh({"gpu": 2}, [1.5, 2.5])
        assert hash(mesh) == hash(ValueMesh({"gpus": 2}, [1.5, 2.5]))
        assert repr(mesh) == "ValueMesh({'gpus': 2}, [1.5, 2.5])"

    def test_holds_what_has_no_truth(self):
        arrays = [np.arange(2), np.arange(2)]
        mesh = ValueMesh({"gpus": 2}, arrays)
        assert mesh[1] is arrays[1]
        assert mesh.slice(gpus=1).item() is arrays[1]
