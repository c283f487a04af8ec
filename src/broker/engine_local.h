/* engine_local.h - the engine of one machine: the shared ring between workers,
 * and the store behind it. Private to src/broker. */
#ifndef CRIER_ENGINE_LOCAL_H
#define CRIER_ENGINE_LOCAL_H

#include "ring.h"
#include "store_lmdb.h"
#include <facil/engine.h>

typedef struct {
  ring_s *ring;
  store_shared_s *store;
  const rules_s *rules; /* what is kept of which channel */
  bool is_durable;      /* commits wait for a disk, in a thread */
  uint64_t birth; /* the broker's clock at its start: what is older and not in
                   * the store is not known here */
} engine_local_s;

/* In a worker, after the fork, on its loop: take the place `slot`, open the
 * store, and be part of the loop's turns (facil_set_engine). The engine to give
 * to pubsub_set, or NULL and errno. */
const engine_s *engine_local_start(const engine_local_s *parts, unsigned slot);

/* At the worker's end: the commit thread is through, the store closed. */
void engine_local_stop(void);

#endif
