// Decoding of gap tiles in the plain way, one change after another: the definition, and the ends of what vectors do.
// Included by the files that compile kernels, inside their namespaces; no include guard on purpose.

// How far the gaps of a tile have been read.
struct GapCursor {
  std::uint32_t found = 0;  // changes
  std::uint32_t next = 0;   // the first unit not yet passed
  std::size_t at = 0;       // in tile.rest
};

// Positions from the cursor on; false if they do not end within the tile or its stream.
template <typename Gap>
bool WalkGaps(const GapTile& tile, GapCursor& cursor) {
  while (cursor.found < tile.stream.changed) {
    if (tile.stream.rest.size() - cursor.at < sizeof(Gap)) return false;
    const std::uint32_t gap = LoadUnit<Gap>(tile.stream.rest.data() + cursor.at, 0);
    cursor.at += sizeof(Gap);
    if (gap >= tile.end - cursor.next) return false;  // there must be room for the change, and for one that is to come
    cursor.next += gap;
    if (gap != kLongestGap<Gap>) tile.positions[cursor.found++] = cursor.next++;
  }
  return true;
}

// The new bits of change k, whose old bits are there already; false if there are none.
template <typename Unit>
bool TakeStep(const GapTile& tile, std::uint32_t k, std::size_t& at) {
  const std::uint32_t code = (tile.stream.steps[k / 2] >> (4 * (k % 2))) & 15;
  const bool down = code % 2 == 1;
  std::uint64_t magnitude = code / 2 + 1;
  const Unit old_unit = LoadUnit<Unit>(tile.old_units, k);
  const Unit most = down ? old_unit : static_cast<Unit>(std::numeric_limits<Unit>::max() - old_unit);
  if (code >= kFirstLongStep) {
    ByteReader reader(tile.stream.rest.subspan(at));
    const auto above = reader.Varint();
    if (!above.ok() || above.value() > std::numeric_limits<std::uint64_t>::max() - kLeastLongMagnitude) return false;
    magnitude = above.value() + kLeastLongMagnitude;
    at += reader.position();
  }
  if (magnitude > most) return false;
  const auto step = static_cast<Unit>(magnitude);
  StoreUnit<Unit>(tile.new_units, k, static_cast<Unit>(down ? old_unit - step : old_unit + step));
  return true;
}

// The old bits of changes that have their positions.
template <typename Unit>
void TakeOldUnits(const GapTile& tile, std::uint32_t begin, std::uint32_t end) {
  // Out of the tile first: the compiler must assume that bytes which are written are those of a pointer in it.
  const std::uint8_t* const base = tile.base;
  const std::uint32_t* const positions = tile.positions;
  std::uint8_t* const old_units = tile.old_units;
  for (std::uint32_t k = begin; k < end; ++k) StoreUnit<Unit>(old_units, k, LoadUnit<Unit>(base, positions[k]));
  OverlayAt<Unit>(tile.overlay, {positions + begin, end - begin}, old_units + begin * sizeof(Unit));
}

// The new bits from change k on, whose varints begin at `at`; false if the stream does not end where it should.
template <typename Unit>
bool TakeSteps(const GapTile& tile, std::uint32_t k, std::size_t at) {
  for (; k < tile.stream.changed; ++k) {
    if (!TakeStep<Unit>(tile, k, at)) return false;
  }
  return at == tile.stream.rest.size();
}
