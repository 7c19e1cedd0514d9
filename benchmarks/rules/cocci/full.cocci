// The submission fix as one semantic patch: order, publish, quiet.

// Submitters queue on ready_head in every mode.
@order@
identifier s, q, m;
@@
- (s->use_async_postsend ? q->tx_wq.prod_idx : &m->tx_wq.ready_head)
+ (&m->tx_wq.ready_head)

// Where the GPU does not ring the doorbell itself, the new index goes where the proxy looks.
@publish@
identifier s, q, m;
expression ready, base, next;
type T;
statement S;
@@
  T m = &q->mvars;
  ...
  while (atomicCAS(ready, base, next) != base) ;
  ...
  if (!s->use_async_postsend) S
+ else {
+     // A proxy rings the doorbell: advance the posted index, then tell it (its slot is read by the CPU)
+     const auto last = atomicMax(reinterpret_cast<unsigned long long int*>(&m->tx_wq.prod_idx), next);
+     if (last < next)
+         atomicMax_system(reinterpret_cast<unsigned long long int*>(q->tx_wq.bf), next);
+ }

// Quiet waits for everything that was queued, whoever rings the doorbell.
@quiet@
identifier s, q, load;
@@
- s->use_async_postsend ? load(q->tx_wq.prod_idx) : load(&q->mvars.tx_wq.ready_head)
+ load(&q->mvars.tx_wq.ready_head)
