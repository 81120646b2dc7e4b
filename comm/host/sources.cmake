list(APPEND LLM_DIST_COMM_SOURCES
  host/byte_ring.cpp host/control_lane.cpp host/event_count.cpp host/host_channel.cpp host/liveness.cpp host/liveness_watch.cpp host/node_ring.cpp
  host/own_address.cpp host/process_watch.cpp host/rendezvous.cpp host/root_sockets.cpp host/segment.cpp host/setup.cpp host/socket.cpp
  host/socket_channel.cpp)
