/* lap.pml - a reader never takes an overwritten record for a whole one (M5).
 *
 * A ring of SIZE cells; a record is one cell, or two that are written one after
 * the other. Writer A may be killed between any two steps, writer B goes on.
 * A cell holds the position that was last written to it, so a read is torn when
 * the value is not the position that was meant. In step with src/broker/ring.c:
 * group_write (reserve, fence, bytes, head), ring_fetch (copy, fence, check).
 *
 * Guards that can be taken out; each must then fail:
 *   CHECK_HEAD    the reader checks against head instead of reserve
 *   RESERVE_BACK  reserve may go back after a death
 *   NO_ROOM_CHECK what is pending may be overwritten (head - stable > SIZE)
 */
#define SIZE 4
#define NONE 9
#ifndef WRITES
#define WRITES 2
#endif

byte cell[SIZE];
byte reserve, head, stable;
byte owner = NONE; /* of the ring lock, robust */
bit a_dead;

#define LOCK_IS_FREE (owner == NONE || (owner == 0 && a_dead))

inline append(me) {
  if :: cells = 1 :: cells = 2 fi;
  d_step { LOCK_IS_FREE -> owner = me };
  if
#ifndef NO_ROOM_CHECK
  :: head + cells - stable > SIZE -> skip /* 503 */
#endif
  :: else ->
#ifdef RESERVE_BACK
     reserve = head + cells;
#else
     d_step { if :: head + cells > reserve -> reserve = head + cells :: else fi };
#endif
     at = head; /* the lock holds: nobody else moves head */
     do
     :: at < head + cells -> atomic { cell[at % SIZE] = at; at++ }
     :: else -> break
     od;
     head = at
  fi;
  owner = NONE;
  cells = 0; at = 0
}

proctype A() {
  byte n, cells, at;
  { do :: n < WRITES -> append(0); n++ :: n == WRITES -> break od }
  unless { a_dead }
}

proctype B() {
  byte n, cells, at;
  do :: n < WRITES -> append(1); n++ :: n == WRITES -> break od
}

/* A commit is one step here; commit.pml takes it apart. It reads the pending
 * cells in place, without a check. */
proctype Committer() {
  byte p, h;
  do
  :: head != stable ->
     h = head;
     d_step {
       p = stable;
       do
       :: p < h -> assert(cell[p % SIZE] == p); p++
       :: else -> break
       od;
       p = 0
     };
     stable = h;
     h = 0
  :: timeout -> break
  od
}

proctype Reader() {
  byte cursor, v;
  do
  :: cursor < stable ->
     v = cell[cursor % SIZE]; /* copy; fence */
     if
#ifdef CHECK_HEAD
     :: head - cursor <= SIZE ->
#else
     :: reserve - cursor <= SIZE ->
#endif
        assert(v == cursor);
        cursor++
     :: else -> cursor = stable /* lapped: told so */
     fi;
     assert(cursor <= stable && stable <= head && head <= reserve)
  :: timeout -> break
  od
}

init {
  byte i;
  atomic {
    do :: i < SIZE -> cell[i] = 99; i++ :: else -> break od;
    run A(); run B(); run Committer(); run Reader()
  }
  if :: a_dead = 1 :: skip fi
}
