// TLS with a certificate made here.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/http/raw_client.h"

namespace llm_dist::http {
namespace {

// A self-signed certificate for 127.0.0.1 in PEM files that go away with it.
class Certificate {
 public:
  explicit Certificate(const std::string& file = "own") {
    std::string stem = "/tmp/llm_dist_tls_" + std::to_string(::getpid()) + file;
    cert_file = stem + ".crt";
    key_file = stem + ".key";
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME* name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(
        name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(cert, names, -1);
    X509_sign(cert, key, EVP_sha256());
    FILE* out = std::fopen(cert_file.c_str(), "w");
    PEM_write_X509(out, cert);
    std::fclose(out);
    out = std::fopen(key_file.c_str(), "w");
    PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(out);
    X509_EXTENSION_free(names);
    X509_free(cert);
    EVP_PKEY_free(key);
  }
  ~Certificate() {
    ::unlink(cert_file.c_str());
    ::unlink(key_file.c_str());
  }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  std::string cert_file, key_file;
};

class Tls : public testing::Test {
 protected:
  std::unique_ptr<Server> start_tls(Handler handler, ServerOptions options = {}) {
    options.tls_cert_file = certificate_.cert_file;
    options.tls_key_file = certificate_.key_file;
    return start(std::move(handler), options);
  }
  Client trusting_client() { return Client(ClientOptions{.tls_ca_file = certificate_.cert_file}); }

  Certificate certificate_;
};

void ok(const Request&, const std::shared_ptr<ResponseWriter>& writer) { writer->send(text("ok")); }

TEST_F(Tls, ServesAndKeepsTheConnection) {
  auto server =
      start_tls([](const Request& r, const std::shared_ptr<ResponseWriter>& w) { w->send(text(r.peer)); });
  EXPECT_EQ(server->url().substr(0, 8), "https://");
  Client client = trusting_client();
  auto first = client.request(get(*server, "/"), soon());
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(client.request(get(*server, "/"), soon())->body, first->body);
  std::string large(3 << 20, 'x');
  EXPECT_EQ(client.request({.method = "POST", .url = server->url(), .body = large}, soon())->status, 200);
}

TEST_F(Tls, StreamsAndNoticesADisconnect) {
  std::atomic<bool> gone = false;
  std::thread producer;
  auto server = start_tls([&](const Request&, std::shared_ptr<ResponseWriter> writer) {
    writer->on_disconnect([&] { gone = true; });
    producer = std::thread([writer] {
      writer->start_stream(200, sse_headers());
      while (writer->write(sse_event("x"))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  int events = 0;
  auto response = trusting_client().stream_events(
      get(*server, "/"), soon(), [&](const SseEvent&) { return ++events < 5; });
  EXPECT_TRUE(response.ok()) << response.status().to_string();
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
  producer.join();
}

TEST_F(Tls, TheClientVerifies) {
  auto server = start_tls(ok);
  auto untrusted = request(get(*server, "/"), soon());
  EXPECT_EQ(untrusted.status().code(), StatusCode::kFailedPrecondition) << untrusted.status().message();
  EXPECT_NE(untrusted.status().message().find("is not trusted"), std::string::npos)
      << untrusted.status().message();
  auto wrong_name =
      trusting_client().request({.url = "https://localhost:" + std::to_string(server->port())}, soon());
  EXPECT_EQ(wrong_name.status().code(), StatusCode::kFailedPrecondition)
      << "the certificate names 127.0.0.1 only";
}

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(Tls, APinnedCertificateIsTrustedUnderAnyName) {
  auto server = start_tls(ok);
  EXPECT_EQ(server->certificate(), text_of(certificate_.cert_file));
  EXPECT_EQ(start(ok)->certificate(), "");
  const std::string url = "https://localhost:" + std::to_string(server->port());
  Client client(ClientOptions{.tls_pinned_file = certificate_.cert_file});
  auto response = client.request({.url = url}, soon());
  EXPECT_TRUE(response.ok()) << response.status().to_string();
  Client nothing_pinned(ClientOptions{.tls_pinned_file = certificate_.key_file});
  EXPECT_EQ(nothing_pinned.request({.url = url}, soon()).status().code(), StatusCode::kInvalidArgument);
}

// The rest of the file are those that have signed it: they sign for others too.
TEST_F(Tls, OfAPinnedFileTheFirstCertificateAloneIsTrusted) {
  auto server = start_tls(ok);
  Certificate pinned("pinned");
  std::ofstream(pinned.cert_file, std::ios::app) << text_of(certificate_.cert_file);
  Client client(ClientOptions{.tls_pinned_file = pinned.cert_file});
  EXPECT_EQ(client.request(get(*server, "/"), soon()).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(Tls, AHandshakeThatNeverComesTimesOut) {
  ServerOptions options;
  options.header_timeout = std::chrono::milliseconds(50);
  auto server = start_tls(ok, options);
  RawClient silent(server->port());
  EXPECT_EQ(silent.read_to_end(), "");
  EXPECT_TRUE(silent.closed());
  RawClient plain(server->port());
  plain.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(plain.read_to_end().find("200 OK"), std::string::npos);
}

TEST_F(Tls, UnusableFilesAreNamed) {
  ServerOptions options;
  options.tls_cert_file = certificate_.cert_file;
  EXPECT_EQ(Server::create(options, ok).status().code(), StatusCode::kInvalidArgument);
  options.tls_key_file = "/nonexistent.key";
  auto server = Server::create(options, ok);
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find("/nonexistent.key"), std::string::npos);
}

}  // namespace
}  // namespace llm_dist::http
