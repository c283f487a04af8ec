/* sock_uring.c - many sends by one system call, where the kernel has io_uring.
 *
 * Sockets are non-blocking, so each send is over when the submission returns;
 * the batch is submitted and all its results are taken before the flush phase
 * ends. Invariant: an entry's bytes are looked at no later than that. */
#include "core.h"
#include <errno.h>

#ifdef HAVE_LIBURING
#include <liburing.h>

#define BATCH 1024

static struct io_uring ring;
static bool is_open;
static batched_s entries[BATCH];
static unsigned count;

int uring_open(void) {
  struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER |
                                       IORING_SETUP_SUBMIT_ALL |
                                       IORING_SETUP_COOP_TASKRUN};
  int r = io_uring_queue_init_params(BATCH, &ring, &p);
  if (r < 0) {
    errno = -r;
    return -1;
  }
  struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
  bool can_send = probe && io_uring_opcode_supported(probe, IORING_OP_SEND);
  io_uring_free_probe(probe);
  if (!can_send) {
    io_uring_queue_exit(&ring);
    errno = ENOSYS;
    return -1;
  }
  (void)io_uring_register_ring_fd(&ring);
  is_open = true;
  return 0;
}

void uring_close(void) {
  if (is_open)
    io_uring_queue_exit(&ring);
  is_open = false;
}

bool uring_is_open(void) {
  return is_open;
}

bool uring_send(slot_s *s, const batched_s *b) {
  if (!is_open)
    return false;
  if (count == BATCH)
    uring_flush();
  struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
  if (!sqe)
    return false;
  entries[count] = *b;
  io_uring_prep_send(sqe, (int)b->slot, b->iov.iov_base, b->iov.iov_len,
                     MSG_NOSIGNAL | MSG_DONTWAIT);
  io_uring_sqe_set_data64(sqe, count);
  s->in_batch = true;
  count++;
  return true;
}

static unsigned take_results(void) {
  struct io_uring_cqe *cqe;
  unsigned head, n = 0;
  io_uring_for_each_cqe(&ring, head, cqe) {
    batched_s b = entries[cqe->user_data];
    n++;
    sock_batch_done(&b, cqe->res);
  }
  io_uring_cq_advance(&ring, n);
  return n;
}

void uring_flush(void) {
  unsigned left = count;
  while (left) {
    int r = io_uring_submit_and_wait(&ring, left);
    if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY) {
      log_line(LOG_ERROR, "io_uring", "error=%d", -r);
      abort(); /* bytes of unknown fate: no order could be promised any more */
    }
    left -= take_results();
  }
  count = 0;
}

#else

int uring_open(void) {
  errno = ENOSYS;
  return -1;
}
void uring_close(void) {}
bool uring_is_open(void) {
  return false;
}
bool uring_send(slot_s *s, const batched_s *b) {
  (void)s, (void)b;
  return false;
}
void uring_flush(void) {}
#endif
