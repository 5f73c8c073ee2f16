// Bugs that tests plant on purpose, to see that the tests of the whole find them. Passed by options; all off unless a
// test turns one on, and nothing else may.
#pragma once

namespace weightwire {

struct PlantedBugs {
  bool record_before_parts = false;     // a publisher commits the record, then puts the parts
  bool lost_answer_is_failure = false;  // a publisher takes a lost answer for "not committed"
  bool part_key_without_hash = false;   // a publisher writes every part of a version under one name
  bool gc_ignores_leases = false;       // gc removes what living leases need
};

}  // namespace weightwire
