"""Reading a compiled program's text."""

import pytest

from lockstep.planning.hlo import Collective, argument_bytes, collectives

HEADER = "HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8]{0:T(128)})->f32[8]{0}}"
PARTITIONED = f"{HEADER}, num_partitions=8"


def module(*lines, header=PARTITIONED):
    body = "\n".join(f"  {line}" for line in lines)
    return f"{header}\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n"


def test_an_all_reduce_of_several_arrays_is_one_collective():
    text = module(
        "%all-reduce.2 = (f32[512,1024]{1,0:T(8,128)S(1)}, bf16[10]{0}) all-reduce(%a, %b), channel_id=1, "
        "replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, use_global_device_ids=true, to_apply=%add",
        "%get-tuple-element.1 = f32[512,1024]{1,0} get-tuple-element(%all-reduce.2), index=0",
    )
    payload = 4 * 512 * 1024 + 2 * 10
    assert collectives(text) == (
        Collective(
            kind="all-reduce", group_size=8, count=1, payload_bytes=payload, sent_bytes=-(-2 * payload * 7 // 8)
        ),
    )


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
        ("replica_groups=[4,2]<=[8]", 2),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", 4),
        ("replica_groups={}", 8),
        ("replica_groups=mesh['x'=4,'y'=2] {'y'}", 2),
        ("replica_groups=mesh['x'=4,'y'=2] {'x','y'}", 8),
        ("replica_groups=mesh['x'=8] {'x':(1)4}", 4),
    ],
)
def test_groups_in_every_form(groups, size):
    text = module(f"%all-gather = f32[64]{{0}} all-gather(%p), {groups}, dimensions={{0}}")
    (found,) = collectives(text)
    assert (found.kind, found.group_size, found.payload_bytes) == ("all-gather", size, 256)
    assert found.sent_bytes == -(-256 * (size - 1) // size)


def test_a_reduce_scatter_takes_what_it_gives_times_the_group():
    text = module("ROOT %r = f32[16]{0} reduce-scatter(%p), replica_groups={{0,1,2,3}}, to_apply=%add")
    (found,) = collectives(text)
    assert (found.payload_bytes, found.sent_bytes) == (256, 192)


def test_what_starts_and_is_done_is_counted_once():
    text = module(
        "%s = (f32[8]{0}, f32[64]{0}) all-gather-start(%p), replica_groups={{0,1,2,3,4,5,6,7}}",
        "%d = f32[64]{0} all-gather-done(%s)",
        "%c = (f32[8]{0}, f32[8]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p), "
        "source_target_pairs={{0,1},{1,0}}",
        "%e = f32[8]{0} collective-permute-done(%c)",
        "%f = f32[32]{0} all-reduce-start(%p), replica_groups={{0,1}}, to_apply=%add",
        "%g = f32[32]{0} all-reduce-done(%f)",
    )
    found = {entry.kind: (entry.count, entry.payload_bytes, entry.sent_bytes) for entry in collectives(text)}
    assert found == {
        "all-gather": (1, 256, 224),
        "collective-permute": (1, 32, 32),
        "all-reduce": (1, 128, 128),
    }


def test_a_collective_that_runs_while_others_compute_is_counted_once():
    text = "\n".join(
        [
            PARTITIONED,
            "%started (a: f32[8]) -> f32[64] {",
            "  %x = f32[64]{0} all-gather(%a), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}",
            "}",
            "%done (a: f32[8]) -> f32[64] {",
            "  %y = f32[64]{0} all-gather(%a), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}",
            "}",
            "ENTRY %main (p: f32[8]) -> f32[8] {",
            "  %z = f32[64]{0} all-gather(%a), channel_id=3, replica_groups=[1,8]<=[8], dimensions={0}",
            "}",
        ]
    )
    (found,) = collectives(text)
    assert (found.count, found.payload_bytes) == (2, 512)


def test_an_all_reduce_fused_with_a_slice_is_a_reduce_scatter():
    text = "\n".join(
        [
            PARTITIONED,
            "%all-reduce-scatter.1 (input: f32[1024]) -> f32[128] {",
            "  %x = f32[1024]{0} all-reduce(%input), channel_id=5, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add",
            "  ROOT %y = f32[128]{0} dynamic-slice(%x, %c), dynamic_slice_sizes={128}",
            "}",
        ]
    )
    (found,) = collectives(text)
    assert (found.kind, found.payload_bytes, found.sent_bytes) == ("reduce-scatter", 4096, 3584)


def test_groups_of_one_move_nothing():
    assert collectives(module("%a = f32[8]{0} all-reduce(%p), replica_groups={{0},{1}}, to_apply=%add")) == ()
    single = module("%a = f32[8]{0} all-reduce(%p), replica_groups={}, to_apply=%add", header=HEADER)
    assert collectives(single) == ()


def test_collectives_in_loops_are_said_to_be():
    text = "\n".join(
        [
            PARTITIONED,
            "%inner (a: f32[8]) -> f32[8] {",
            "  ROOT %x = f32[8]{0} all-reduce(%a), replica_groups={}, to_apply=%add",
            "}",
            "%body (a: (s32[], f32[8])) -> (s32[], f32[8]) {",
            "  %y = f32[8]{0} call(%a), to_apply=%inner",
            "}",
            "ENTRY %main (p: f32[8]) -> f32[8] {",
            "  %w = (s32[], f32[8]{0}) while(%t), condition=%condition, body=%body",
            "  %z = f32[8]{0} all-reduce(%p), replica_groups={}, to_apply=%add",
            "}",
        ]
    )
    (found,) = collectives(text)
    assert (found.count, found.count_in_loops) == (2, 1)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[3,3,1,32]{3,2,1,0:T(1,128)}", 4 * 3 * 3 * 128),
        ("f32[7744,10]{0,1:T(8,128)}", 4 * 16 * 7808),  # the minor dim is the first one here
        ("f32[10]{0:T(128)}", 512),
        ("f32[]{:T(128)}", 512),
        ("s32[]", 4),
        ("bf16[100,100]{1,0:T(8,128)(2,1)}", 2 * 104 * 128),
        ("bf16[100,100]{1,0:T(8,128)(2,1)S(1)}", 2 * 104 * 128),
        ("pred[5]{0}", 5),
        ("s4[5]{0}", 3),
        ("f8e4m3fn[2,3]{1,0}", 6),
        ("f64[2,3]{1,0}", 48),
    ],
)
def test_arguments_take_whole_tiles(shape, size):
    layout = f"{{({shape}, /*index=1*/u8[7]{{0}})->(f32[9]{{0:T(128)}})}}"
    header = f"HloModule m, entry_computation_layout={layout}, num_partitions=2"
    assert argument_bytes(f"{header}\nENTRY %main () -> f32[] {{\n}}\n") == (size, 7)
