// Owns: leaving a core to others where it costs least.
// Lanes compute without a pause, so whoever else has work, above all the Python of the same server, must interrupt one of them. In the
// middle of a part that keeps all lanes waiting. So Python's threads are of the class that does not interrupt (SCHED_BATCH), and
// lanes offer their core between two parts, where the others can take over all that is left.
#pragma once

namespace sapwood {

// Lets threads that wait for this core run, at most every 100 us; where none waits it costs a fraction of a microsecond.
// Where somebody took the core for longer than Python does, it is another program that computes: the next offer is far away, and the
// kernel shares out the core.
void offer_core();

}  // namespace sapwood
