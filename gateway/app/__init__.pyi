from gateway.app.gateway import Gateway as Gateway
