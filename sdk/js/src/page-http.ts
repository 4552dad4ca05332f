/**
 * Gives `hub.http` to the clients of the one file for pages.
 * @module
 */
import { HttpApi } from "./http.ts";
import { provideHttp } from "./page.ts";

provideHttp(HttpApi);

export { HttpApi };
