"""vLLM follows a run by itself: `WEIGHTWIRE_RUN=… VLLM_PLUGINS=weightwire vllm serve MIRROR` (docs/vllm.md).

All modules are private.

All processes:
_plugin           how the plug-in is turned on: vLLM's entry points

In the API server:
_endpoint         adds the routes, and decides when the server may start
_version_header   the headers that name the versions that made a completion
_engine_follower  the task that follows: fetch, prepare, move the mirror, commit
_engine           the engine: tasks for all workers, and one commit; in the engine core, that commit between two steps
_status           what vLLM's workers add to the status
_mirror           what the API server and the workers share on the disk: the mirror, and the change file

Shared by all engines, in weightwire.integrations:
_settings         the variables of the environment
_routes           what the routes answer and refuse
_control_socket   forwards requests from other API processes to the one that follows
_engine_status    the fields of the status route, and the metrics of _metrics
_version_headers  the names and values of the headers

In each worker:
_worker_agent     runs tasks on a thread; returns a status and never raises
_parameter_map    where the checkpoint's elements are in the parameters, and what an update does to them
_prepared_update  what a commit writes and reloads
_learned_map      learns the map, whose entries are boxes, from the model's own loader
_derived          which modules keep something derived from their weights

The path of a commit:
1. EngineFollower._step: Follower.poll fetches and stages the newest version
2. EngineFollower._prepare: write_change puts the change into a file
3. Engine.prepare_change → weightwire_ask_workers (in the engine core) → WorkerAgent.start_task (in each worker)
4. WorkerAgent.prepare_change → ParameterMap.prepare_change: locates and compares; nothing is written
5. EngineFollower._move_mirror: Update.apply writes the mirror
6. Engine.commit → weightwire_commit (in the engine core, between two steps): drops the caches
7. WorkerAgent.commit → ParameterMap.commit → SparseWrite.write: writes, and reads back
8. FollowStatus.committed: status, log and metrics
"""
