# syntax=docker/dockerfile:1
# The gateway without a shell: distroless Node 24, numeric user 65532, nothing writable. Both bases can be overridden,
# for instance by a pinned digest or an internal mirror.
ARG BUILD_IMAGE=docker.io/library/node:24-bookworm-slim
ARG RUNTIME_IMAGE=gcr.io/distroless/nodejs24-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /app
# Behind a proxy with a private authority: --build-arg NODE_EXTRA_CA_CERTS=FILE and a mount of that file.
ARG NODE_EXTRA_CA_CERTS
# The lock file alone decides what is installed; sources change without another installation. No package runs anything meanwhile.
COPY package.json package-lock.json ./
RUN --mount=type=cache,target=/root/.npm npm ci --ignore-scripts --no-audit --no-fund
COPY . .
# The workspace is a Node for development; the runtime image brings its own.
RUN npm run build && npm prune --ignore-scripts --omit=dev --omit=optional --no-audit --no-fund && rm node_modules/sluice-node

FROM ${RUNTIME_IMAGE}
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="Request-throttling gateway: queues bursts, absorbs 429s and paces calls to rate-limited APIs." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Finds node in the distroless image and in the official one, so that the entry point needs neither a shell nor a script.
ENV PATH=/nodejs/bin:/usr/local/bin:/usr/bin:/bin NODE_ENV=production
# Probes and scrapers ask from outside of the container; never publish port 9090.
ENV SLUICE_ADMIN_HOST=0.0.0.0
# Some builders give WORKDIR to the base's user, who could then add files.
USER 0
WORKDIR /app
# Owned by root: the process cannot change its own code.
COPY --from=build --chown=0:0 /app/package.json ./
COPY --from=build --chown=0:0 /app/node_modules ./node_modules
COPY --from=build --chown=0:0 /app/dist ./dist
# A number, because kubelet cannot prove that a name is not root.
USER 65532
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
# For compose and plain engines; Kubernetes asks /livez and /readyz itself.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s CMD ["node", "-e", "fetch('http://127.0.0.1:9090/livez').then((a) => process.exit(a.ok ? 0 : 1), () => process.exit(1))"]
# A limit of V8 that cannot be set once it runs (docs/performance/README.md, "Memory of a held call").
ENTRYPOINT ["node", "--max-semi-space-size=16"]
CMD ["dist/main.js", "serve", "--config", "/etc/sluice/sluice.yaml"]
