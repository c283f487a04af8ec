/* engine_local.h - the engine of one machine: the shared ring between workers.
 * Private to src/broker. */
#ifndef CRIER_ENGINE_LOCAL_H
#define CRIER_ENGINE_LOCAL_H

#include "ring.h"
#include <facil/engine.h>

/* In a worker, after the fork, on its loop: take the place `slot` in `ring`, and
 * be part of the loop's turns (facil_set_engine). `birth` is the broker's clock
 * at its start: nothing older is known here. The engine to give to pubsub_set,
 * or NULL and errno. */
const engine_s *engine_local_start(ring_s *ring, unsigned slot, uint64_t birth);

#endif
