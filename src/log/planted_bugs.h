// Bugs that tests plant on purpose, to see that the tests of the whole find them. Passed by options; all off unless a
// test turns one on, and nothing else may.
#pragma once

namespace weightwire {

struct PlantedBugs {
  bool record_before_parts = false;     // a publisher commits the record, then puts the parts
  bool lost_answer_is_failure = false;  // a publisher takes a lost answer for "not committed"
  bool part_key_without_hash = false;   // a publisher writes every part of a version under one name
  // Of several ranks:
  bool commit_without_last_rank = false;    // rank 0 does not wait for the last rank's report
  bool no_roll_back = false;                // a rank goes on from what a failed call has made
  bool epoch_ignored = false;               // … from what was taken back between making and enqueueing
  bool verdict_before_record = false;       // rank 0 says "committed" before it knows so
  bool deadline_fails_sent_record = false;  // rank 0 says "failed" of a record that may be there
  bool base_sums_unchecked = false;         // rank 0 does not look where the ranks' bases begin
};

}  // namespace weightwire
