#include "src/device/cpu/cgroup.h"

#include <fstream>
#include <sstream>

namespace llm_dist::device {
namespace {

bool names_controller(const std::string& names, const std::string& controller) {
  if (names == controller) return true;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == controller) return true;
  }
  return false;
}

// v2 lines read "0::/path", v1 lines "5:memory:/path" or "4:cpu,cpuacct:/path".
std::string group_path(const std::string& controller, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    size_t first = line.find(':');
    size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (names_controller(line.substr(first + 1, second - first - 1), controller))
      return line.substr(second + 1);
  }
  return "";
}

}  // namespace

std::vector<std::string> cgroup_folders(const std::string& controller, const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
  std::vector<std::string> folders;
  // A container may see the host's path: then only the mount itself is there, and that is the container's
  // group.
  std::string path = group_path(controller, root);
  while (!path.empty() && path != "/") {
    folders.push_back(mount + path);
    path.resize(path.find_last_of('/'));
  }
  folders.push_back(mount);
  return folders;
}

}  // namespace llm_dist::device
