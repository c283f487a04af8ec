/* subscribe.pml - what is published after an answered subscribe arrives (M2),
 * and no wake-up is lost (M1).
 *
 * P, on another worker, publishes RECORDS messages without history. S
 * subscribes: count, fence, read to stable, join there, answer; then it turns:
 * read, flag up, fence, look again, sleep. In step with src/broker/ring.c:
 * ring_subscribe, ring_may_sleep, ring_woke; ring_commit.c: batch_publish,
 * batch_concerns, slots_wake.
 *
 * Guards that can be taken out; each must then fail:
 *   INTEREST_AT_APPEND counts are read before stable moves
 *   COUNT_AFTER_DRAIN  S reads to stable, then counts
 *   ANSWER_FIRST       S answers before it counts
 *   NO_RECHECK         S sleeps without looking at stable again
 *   FLAG_AFTER_CHECK   S looks, then puts its flag up
 *   DRAIN_THEN_CLEAR   on waking, S reads stable before it takes the flag down
 *                      and empties the descriptor
 */
#ifndef RECORDS
#define RECORDS 3
#endif

bit count, sleeping, rung, answered, interested;
byte head, stable, cursor, start;
bit owed[RECORDS];

active proctype P() {
  byte n;
  do
  :: n < RECORDS ->
     owed[n] = answered; /* the publish begins */
     head = head + 1;
#ifdef INTEREST_AT_APPEND
     interested = count;
     stable = head;
#else
     stable = head; /* fence */
     interested = count;
#endif
     if
     :: interested ->
        if
        :: d_step { sleeping -> sleeping = 0 }; /* exchange */
           rung = 1
        :: else
        fi
     :: else
     fi;
     n++
  :: n == RECORDS -> break
  od
}

active proctype S() {
  /* on_data: a subscribe */
#ifdef ANSWER_FIRST
  answered = 1;
#endif
#ifdef COUNT_AFTER_DRAIN
  cursor = stable; start = cursor;
  count = 1;
#else
  count = 1; /* fence */
  cursor = stable; start = cursor;
#endif
  answered = 1;
  do
  :: cursor = stable; /* a turn: everything is read */
#ifdef FLAG_AFTER_CHECK
     if
     :: stable != cursor -> skip
     :: else ->
        sleeping = 1;
end_sleep:
        rung -> rung = 0; sleeping = 0
     fi
#else
     sleeping = 1; /* fence */
     if
#ifndef NO_RECHECK
     :: stable != cursor -> sleeping = 0
#endif
     :: else ->
end_sleep:
#ifdef DRAIN_THEN_CLEAR
        rung -> cursor = stable; sleeping = 0; rung = 0;
        sleeping = 1;
end_again:
        rung -> rung = 0; sleeping = 0
#else
        rung -> sleeping = 0; rung = 0
#endif
     fi
#endif
  od
}

active proctype Monitor() {
  byte i;
  timeout; /* nothing can move any more */
  assert(cursor == stable);
  do
  :: i < RECORDS -> assert(!owed[i] || start <= i); i++
  :: else -> break
  od
}
