"""The mutation museum: the suite can fail. Each defect must fail the test that is named for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.crash import museum, test_promises

if TYPE_CHECKING:
    from collections.abc import Callable

#: Defect -> the test that must notice it.
EXHIBITS: Final = {
    museum.skip_a_folder_sync: test_promises.test_names_of_segments_power_cut_anywhere_are_there,
    museum.ack_before_sync: test_promises.test_acked_record_power_cut_anywhere_is_there,
    museum.skip_the_body_crc: test_promises.test_torn_body_power_cut_is_never_read,
    museum.reset_the_sequence: test_promises.test_sequence_reopened_after_any_crash_continues,
    museum.delete_one_segment_too_many: (
        test_promises.test_cleanup_any_crash_keeps_what_a_reader_needs
    ),
    museum.commit_word_first: test_promises.test_group_seen_by_another_process_is_whole,
    museum.zero_only_the_torn_frame: (
        test_promises.test_leftovers_behind_a_torn_frame_never_come_back
    ),
    museum.skip_the_rewrite: test_promises.test_failed_sync_log_reopened_is_written_again,
    museum.publish_what_came_during_the_sync: (
        test_promises.test_record_appended_during_a_sync_is_not_called_durable
    ),
    museum.unlink_before_the_manifest: (
        test_promises.test_cleanup_any_crash_never_misses_a_named_segment
    ),
    museum.ignore_an_unreadable_reader: (
        test_promises.test_unreadable_reader_cleanup_deletes_nothing
    ),
    museum.drop_nothing: test_promises.test_unsynced_record_power_cut_that_drops_is_lost,
    museum.overwrite_without_pointing_again: (
        test_promises.test_manifest_interrupted_flip_cleaned_up_elsewhere_is_whole
    ),
    museum.open_without_settling_the_manifest: (
        test_promises.test_manifest_interrupted_flip_log_reopened_goes_on_durably
    ),
    museum.alternate_slots_in_plain_commits: (
        test_promises.test_reader_position_unsynced_commits_power_cut_stays
    ),
    museum.forget_the_name_of_a_reader: (
        test_promises.test_reader_name_interrupted_registration_is_durable_for_the_next
    ),
    museum.leave_the_mark_unsynced: test_promises.test_producer_table_power_cut_in_a_roll_is_there,
    museum.move_frames_below_the_watermark: (
        test_promises.test_repair_stopped_between_its_files_keeps_the_same_records
    ),
    museum.repair_on_what_may_not_be_durable: (
        test_promises.test_repair_repeated_behind_a_failed_sync_is_durable
    ),
    museum.repair_without_a_backup: test_promises.test_repair_stopped_anywhere_has_the_old_files,
    museum.repair_to_the_last_whole_record: (
        test_promises.test_sequences_of_a_lost_tail_never_come_back
    ),
}


@pytest.mark.parametrize(
    ("defect", "named_test"), EXHIBITS.items(), ids=[defect.__name__ for defect in EXHIBITS]
)
# Whatever a defective log leaves open is not the point here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_defect_switched_on_fails_its_named_test(
    defect: Callable[[pytest.MonkeyPatch], None],
    named_test: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the defect the named test fails by an assertion, without it it passes (S0-30)."""
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        named_test()


def test_exhibits_name_every_promise_and_each_only_once() -> None:
    """Every test of `test_promises` has a defect that it alone is there to notice."""
    promises = {name for name in vars(test_promises) if name.startswith("test_")}
    named = [test.__name__ for test in EXHIBITS.values()]
    assert sorted(named) == sorted(promises)
