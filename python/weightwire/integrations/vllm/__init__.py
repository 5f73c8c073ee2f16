"""vLLM follows a run by itself: `WEIGHTWIRE_RUN=… VLLM_PLUGINS=weightwire vllm serve MIRROR` (docs/vllm.md).

plugin      what vLLM calls: methods for workers and the engine's core, routes and a task for the API server
options     the environment variables
engine      the engine as that task sees it: questions to all workers, and one commit
server      the task: fetches, has the workers prepare, moves the mirror, commits
lag         how far the engine is behind the run
routes      status, standing still, and which versions made a completion
core        in the engine's core: one commit between two steps
worker      in each worker: methods that return a status and never raise
holding     in each worker: the model's parameters, what they hold, and what a change does to them
shadow      which element of a checkpoint goes where, learned from the model's own loader
places      the map that comes of it
derived     which modules keep something made from their weights
reload      for those: the model's own loader once more, for whole modules
metrics     what is counted, for `/metrics`
mirror      reading a mirror's tensors, and what it says of itself
change_file a staged change on its way from the API server to the workers
tensor_file how such a file is written and mapped
"""
