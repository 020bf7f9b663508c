"""The tree of published blocks: what it finds is exact, and what it forgets leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.localengine.scheduling.prefixes import PrefixTree

SIZE = 4
A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def nodes(tree: PrefixTree) -> int:
    """How many nodes there are below the root."""

    def below(node: object) -> Iterator[object]:
        for child in node.children.values():  # type: ignore[attr-defined]
            yield child
            yield from below(child)

    return sum(1 for _ in below(tree._root))


def found(tree: PrefixTree, tokens: list[int], salt: str | None = None, most: int = 99) -> list[int]:
    return tree.match(tokens, salt, most)


def test_a_match_is_of_whole_blocks_from_the_start():
    tree = PrefixTree(SIZE)
    assert tree.publish([*A, *B], None, [7, 3]) == [7, 3]
    assert found(tree, [*A, *B]) == [7, 3]
    assert found(tree, [*A, *B, *C]) == [7, 3]
    assert found(tree, [*A, *B[:3]]) == [7]
    assert found(tree, A[:3]) == []
    assert found(tree, []) == []
    assert found(tree, B) == [], "the same tokens in another place are something else"
    assert found(tree, [*A, *A]) == [7]


@pytest.mark.parametrize("place", range(2 * SIZE))
def test_one_other_token_ends_the_match_in_its_block(place: int):
    tree = PrefixTree(SIZE)
    tree.publish([*A, *B], None, [0, 1])
    tokens = [*A, *B]
    tokens[place] = 99
    assert found(tree, tokens) == [0, 1][: place // SIZE]


def test_no_more_is_matched_than_is_asked_for():
    tree = PrefixTree(SIZE)
    tree.publish([*A, *B, *C], None, [0, 1, 2])
    assert [found(tree, [*A, *B, *C], most=most) for most in range(5)] == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2]]


def test_what_is_known_already_stays_with_the_first_block():
    tree = PrefixTree(SIZE)
    tree.publish([*A, *B], None, [0, 1])
    assert tree.publish([*A, *B, *C], None, [5, 6, 7]) == [7]
    assert found(tree, [*A, *B, *C]) == [0, 1, 7]
    assert tree.publish([*A, *B, *C], None, [0, 1, 7]) == []
    assert set(tree) == {0, 1, 7}
    assert (1 in tree, 5 in tree) == (True, False)


def test_a_block_is_known_by_one_content_only():
    tree = PrefixTree(SIZE)
    tree.publish(A, None, [0])
    assert tree.publish(B, None, [0]) == []
    assert found(tree, B) == []
    assert nodes(tree) == 2, "the salt's and A's"


def test_a_hole_hides_what_is_behind_it_until_it_is_filled_again():
    tree = PrefixTree(SIZE)
    tree.publish([*A, *B, *C], None, [0, 1, 2])
    tree.forget(1)
    assert found(tree, [*A, *B, *C]) == [0]
    assert 2 in tree
    assert tree.publish([*A, *B], None, [0, 9]) == [9]
    assert found(tree, [*A, *B, *C]) == [0, 9, 2]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_forgetting_all_leaves_nothing_behind(order: tuple[int, ...]):
    tree = PrefixTree(SIZE)
    tree.publish([*A, *B, *C], "salt", [0, 1, 2])
    assert nodes(tree) == 4
    for block in order:
        tree.forget(block)
    assert nodes(tree) == 0
    assert list(tree) == []


def test_a_branch_that_is_forgotten_leaves_the_other():
    tree = PrefixTree(SIZE)
    tree.publish([*A, *B], None, [0, 1])
    tree.publish([*A, *C], None, [0, 2])
    tree.forget(2)
    assert nodes(tree) == 3
    tree.forget(0)
    assert nodes(tree) == 3, "B is behind it"
    tree.forget(1)
    assert nodes(tree) == 0


def test_publishing_nothing_leaves_nothing_behind():
    tree = PrefixTree(SIZE)
    assert tree.publish([], "salt", []) == []
    assert tree.publish(A[:3], "salt", [0]) == [], "a block that is not full"
    assert nodes(tree) == 0


def test_forgetting_a_block_that_is_unknown_is_an_error():
    with pytest.raises(KeyError):
        PrefixTree(SIZE).forget(3)


def test_what_one_salt_leads_to_no_other_can_reach():
    tree = PrefixTree(SIZE)
    salts = (None, "", "None", "a", "a ")
    for block, salt in enumerate(salts):
        assert tree.publish(A, salt, [block]) == [block]
    assert [found(tree, A, salt) for salt in salts] == [[0], [1], [2], [3], [4]]
    assert found(tree, A, "b") == []
    tree.forget(3)
    assert [found(tree, A, salt) for salt in salts] == [[0], [1], [2], [], [4]]


def test_a_block_may_be_a_single_token():
    tree = PrefixTree(1)
    tree.publish([3, 4], None, [0, 1])
    assert found(tree, [3, 4]) == [0, 1]
    assert found(tree, [4]) == []


class Colliding(int):
    """A token whose hash is that of every other."""

    def __hash__(self) -> int:
        return 1


def test_tokens_are_compared_even_where_all_hashes_are_the_same():
    """vLLM's advisory on hash collisions in the prefix cache: equal hashes must not make a hit."""
    tree = PrefixTree(2)
    chains = [
        [Colliding(a), Colliding(b), Colliding(c), Colliding(0)] for a in (1, 2) for b in (1, 2) for c in (1, 2)
    ]
    assert len({hash(tuple(chain[:2])) for chain in chains}) == 1
    for number, chain in enumerate(chains):
        tree.publish(chain, None, [2 * number, 2 * number + 1])
    for number, chain in enumerate(chains):
        first, second = found(tree, chain)
        assert first == 2 * (number - number % 2), "two chains have their first block in common"
        assert second == 2 * number + 1
    assert found(tree, [Colliding(1), Colliding(3), Colliding(1), Colliding(0)]) == []


Operation = tuple[str, list[int], str | None, int]


@settings(max_examples=300, deadline=None)
@given(
    size=st.integers(1, 3),
    operations=st.lists(
        st.tuples(
            st.sampled_from(["publish", "extend", "forget", "match"]),
            st.lists(st.integers(0, 1), max_size=9),
            st.sampled_from([None, "a"]),
            st.integers(0, 9),
        ),
        max_size=40,
    ),
)
def test_it_finds_what_a_dict_of_whole_prefixes_would(size: int, operations: list[Operation]):
    tree = PrefixTree(size)
    known: dict[tuple[str | None, tuple[int, ...]], int] = {}
    fresh = iter(range(10**6))
    for what, tokens, salt, number in operations:
        prefixes = [tuple(tokens[: end + size]) for end in range(0, len(tokens) - size + 1, size)]
        match what:
            case "publish" | "extend":
                held = tree.match(tokens, salt, number) if what == "extend" else []
                blocks = [*held, *(next(fresh) for _ in prefixes[len(held) :])]
                missing = {p: b for p, b in zip(prefixes, blocks, strict=True) if (salt, p) not in known}
                assert tree.publish(tokens, salt, blocks) == list(missing.values())
                known |= {(salt, prefix): block for prefix, block in missing.items()}
            case "forget" if known:
                key = sorted(known, key=repr)[number % len(known)]
                tree.forget(known.pop(key))
            case "match":
                expected = []
                for prefix in prefixes[:number]:
                    if (salt, prefix) not in known:
                        break
                    expected.append(known[salt, prefix])
                assert tree.match(tokens, salt, number) == expected
        assert set(tree) == set(known.values())
        # a node for each salt, and for each block that is held or on the way to one
        paths = {(salt, prefix[:end]) for salt, prefix in known for end in range(0, len(prefix) + 1, size)}
        assert nodes(tree) == len(paths)
