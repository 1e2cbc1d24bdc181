-- Sends one request again and again, and prints what came of it as one line of JSON.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local authorization = os.getenv("LOAD_AUTHORIZATION")
if authorization then
  wrk.headers["Authorization"] = authorization
end
local file = assert(io.open(os.getenv("LOAD_BODY"), "rb"))
wrk.body = file:read("*a")
file:close()

function done(summary, latency)
  local errors = summary.errors
  print(string.format(
    '{"requests": %d, "duration_us": %.0f, "p50_us": %.0f, "p99_us": %.0f, '
      .. '"status": %d, "connect": %d, "read": %d, "write": %d, "timeout": %d}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect, errors.read, errors.write, errors.timeout
  ))
end
